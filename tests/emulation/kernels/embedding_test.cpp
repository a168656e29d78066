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

TEST(CudaEmbedding, HasTheBitsOfTheCpu) {
  constexpr int64_t kVocabBegin = 10;
  // A warp covers 512 columns, a block 8 tokens; tokens are searched 32 at a time.
  for (const int64_t num_tokens : {1, 31, 33, 100}) {
    for (const int64_t columns : {1, 31, 33, 260, 513}) {
      for (const size_t shift : {0, 1}) {
        const int64_t num_valid = 5;
        const int64_t num_rows = 7;  // two of padding
        const auto tokens = some_tokens(num_tokens, num_valid);
        const auto table = random_values<float>(num_rows * columns, 1);
        const auto dy = random_values<float>(num_tokens * columns, 2);
        const auto before = random_values<float>(num_rows * columns, 3);
        std::vector<float> y(dy.size());
        auto dtable = before;
        cpu::embedding_forward(y.data(), tokens.data(), table.data(), num_tokens, columns, kVocabBegin, num_valid);
        cpu::embedding_backward(dtable.data(), dy.data(), tokens.data(), num_tokens, columns, kVocabBegin, num_valid);
        const std::string what = fmt::format("{} tokens, {} columns, shift {}", num_tokens, columns, shift);
        const auto outputs = under_every_order(what, [&] {
          const OnDevice<int32_t> device_tokens(tokens), device_order(stable_order(tokens));
          const OnDevice<float> device_table(table, shift), device_dy(dy), device_y(dy.size()),
              device_dtable(before, shift);
          cuda::embedding_forward(Element::kF32, device_y.get(), device_tokens.get(), device_table.get(), num_tokens,
                                  columns, kVocabBegin, num_valid, nullptr);
          cuda::embedding_backward(Element::kF32, device_dtable.get(), device_dy.get(), device_tokens.get(),
                                   device_order.get(), num_tokens, columns, kVocabBegin, num_valid, nullptr);
          return std::array{device_y.values(), device_dtable.values()};
        });
        EXPECT_TRUE(same_bits(outputs[0], y)) << what << " y";
        EXPECT_TRUE(same_bits(outputs[1], dtable)) << what << " dtable";
      }
    }
  }
}

TEST(CudaPosition, HasTheBitsOfTheCpu) {
  for (const int64_t batch : {1, 3}) {
    for (const int64_t length : {1, 7, 9}) {
      for (const int64_t columns : {1, 31, 33, 260, 513}) {
        for (const bool add : {false, true}) {
          const int64_t table_length = length + 2;
          const auto table = random_values<float>(table_length * columns, 1);
          const auto dy = random_values<float>(batch * length * columns, 2);
          auto y = dy;
          auto dtable = table;
          cpu::position_forward(y.data(), table.data(), batch, length, columns);
          cpu::position_backward(dtable.data(), dy.data(), batch, length, table_length, columns, add);
          const std::string what = fmt::format("[{},{},{}] add {}", batch, length, columns, add);
          const auto outputs = under_every_order(what, [&] {
            const OnDevice<float> device_table(table), device_dy(dy), device_y(dy);
            cuda::position_forward(Element::kF32, device_y.get(), device_table.get(), batch, length, columns, nullptr);
            cuda::position_backward(Element::kF32, device_table.get(), device_dy.get(), batch, length, table_length,
                                    columns, add, nullptr);
            return std::array{device_y.values(), device_table.values()};
          });
          EXPECT_TRUE(same_bits(outputs[0], y)) << what << " y";
          EXPECT_TRUE(same_bits(outputs[1], dtable)) << what << " dtable";
        }
      }
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels
