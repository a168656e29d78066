#include "kernels/cuda/embedding.h"

#include <algorithm>
#include <numeric>

#include "kernels/cpu/embedding.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

// Tokens around the shard [10, 10 + num_valid): most inside, some before, some behind, many of them more than once.
std::vector<int32_t> some_tokens(int64_t count, int64_t num_valid) {
  const PhiloxStream random(7, RngPurpose::kTest, 99);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(7 + (random.normal(i) + 10) * 1000) % static_cast<int32_t>(num_valid + 6) + 7;
  }
  return tokens;
}

std::vector<int32_t> stable_order(const std::vector<int32_t>& tokens) {
  std::vector<int32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
  });
  return order;
}

constexpr int64_t kVocabBegin = 10;

template <typename T>
void compare_embedding(int64_t columns, const std::vector<int32_t>& tokens, size_t shift) {
  const int64_t num_valid = 5;
  const int64_t num_rows = 7;  // two of padding
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  const auto table = random_elements<T>(num_rows * columns, 1);
  const auto dy = random_elements<T>(num_tokens * columns, 2);
  const auto before = random_values<float>(num_rows * columns, 3);
  const auto table32 = as_float(table), dy32 = as_float(dy);
  std::vector<float> y(dy.size());
  auto dtable = before;
  cpu::embedding_forward(y.data(), tokens.data(), table32.data(), num_tokens, columns, kVocabBegin, num_valid);
  cpu::embedding_backward(dtable.data(), dy32.data(), tokens.data(), num_tokens, columns, kVocabBegin, num_valid);
  const std::string what =
      fmt::format("{} {} tokens, {} columns, shift {}", dtype_name(DTypeOf<T>::value), num_tokens, columns, shift);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<int32_t> device_tokens(tokens), device_order(stable_order(tokens));
    const OnDevice<T> device_table(table, shift), device_dy(dy), device_y(dy.size());
    const OnDevice<float> device_dtable(before, shift);
    cuda::embedding_forward(element_of<T>(), device_y.get(), device_tokens.get(), device_table.get(), num_tokens,
                            columns, kVocabBegin, num_valid, nullptr);
    cuda::embedding_backward(element_of<T>(), device_dtable.get(), device_dy.get(), device_tokens.get(),
                             device_order.get(), num_tokens, columns, kVocabBegin, num_valid, nullptr);
    return std::tuple(device_y.values(), device_dtable.values());
  });
  EXPECT_TRUE(same_bits(std::get<0>(outputs), rounded_to<T>(y))) << what << " y";
  EXPECT_TRUE(same_bits(std::get<1>(outputs), dtable)) << what << " dtable";
}

TEST(CudaEmbedding, HasTheBitsOfTheCpu) {
  // A warp covers 512 columns forward (1024 of 16 bits) and 128 backward, a block 8 tokens; backward reads the order 32
  // at a time and rows 8 at a time.
  for (const int64_t num_tokens : {1, 31, 33, 100}) {
    for (const int64_t columns : {1, 31, 33, 260, 520}) {
      for (const size_t shift : {0, 1}) {
        for_all_elements(
            [&](auto zero) { compare_embedding<decltype(zero)>(columns, some_tokens(num_tokens, 5), shift); });
      }
    }
  }
}

TEST(CudaEmbedding, AddsLongRunsOfOneToken) {
  for (const size_t count : {31u, 32u, 33u, 64u, 71u}) {
    for (const int32_t other : {9, 11, 13}) {
      std::vector<int32_t> tokens(count, 12);
      tokens.push_back(other);
      tokens.insert(tokens.begin(), other);
      compare_embedding<float>(8, tokens, 0);
      compare_embedding<BFloat16>(8, tokens, 0);
    }
    compare_embedding<BFloat16>(8, std::vector<int32_t>(count, 14), 0);
  }
}

template <typename T>
void compare_position(int64_t rows, int64_t length, int64_t columns, int64_t first, bool add) {
  const int64_t table_length = length + 2;
  const auto table = random_elements<T>(table_length * columns, 1);
  const auto dy = random_elements<T>(rows * columns, 2);
  const auto before = random_values<float>(table_length * columns, 3);
  const auto table32 = as_float(table), dy32 = as_float(dy);
  auto y = dy32;
  auto dtable = before;
  cpu::position_forward(y.data(), table32.data(), rows, columns, {first, length});
  cpu::position_backward(dtable.data(), dy32.data(), rows, table_length, columns, {first, length}, add);
  const std::string what = fmt::format("{} [{},{}] from row {} of samples of {} add {}", dtype_name(DTypeOf<T>::value),
                                       rows, columns, first, length, add);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<T> device_table(table), device_dy(dy), device_y(dy);
    const OnDevice<float> device_dtable(before);
    cuda::position_forward(element_of<T>(), device_y.get(), device_table.get(), rows, columns, {first, length},
                           nullptr);
    cuda::position_backward(element_of<T>(), device_dtable.get(), device_dy.get(), rows, table_length, columns,
                            {first, length}, add, nullptr);
    return std::tuple(device_y.values(), device_dtable.values());
  });
  EXPECT_TRUE(same_bits(std::get<0>(outputs), rounded_to<T>(y))) << what << " y";
  EXPECT_TRUE(same_bits(std::get<1>(outputs), dtable)) << what << " dtable";
}

TEST(CudaPosition, HasTheBitsOfTheCpu) {
  for (const int64_t batch : {1, 3}) {
    for (const int64_t length : {1, 7, 9}) {
      for (const int64_t columns : {1, 31, 33, 260, 520}) {
        for (const bool add : {false, true}) {
          for_all_elements([&](auto zero) {
            using T = decltype(zero);
            compare_position<T>(batch * length, length, columns, 0, add);
            if (columns ==
                33) {  // a part of the rows: less than a sample, and the end of one with the start of another
              compare_position<T>((length + 1) / 2, length, columns, length / 2, add);
              compare_position<T>(length + 1, length, columns, 2 * length - 1, add);
            }
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels
