#include "kernels/cuda/cross_entropy.h"

#include <limits>

#include "kernels/cpu/cross_entropy.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

struct Case {
  int64_t rows;
  std::vector<VocabShard> shards;  // of the ranks, in order
  size_t shift = 0;
  bool gradient = true;
};

// Every rank's stats and finish, the ranks one after the other, on the device and on the CPU in double.
template <typename T>
void compare_elements(const Case& c, double logit_scale) {
  const auto num_ranks = static_cast<int64_t>(c.shards.size());
  const int64_t vocabulary = c.shards.back().vocab_begin + c.shards.back().num_valid;
  std::vector<int32_t> targets(static_cast<size_t>(c.rows));
  std::vector<float> mask(targets.size(), 1.0f);
  for (size_t row = 0; row < targets.size(); ++row) {
    targets[row] = static_cast<int32_t>(static_cast<int64_t>(row * 7919) % vocabulary);
    mask[row] = row % 5 == 3 ? 0.0f : 1.0f;
  }
  std::vector<std::vector<T>> logits(c.shards.size());
  std::vector<double> all_stats(static_cast<size_t>(num_ranks * c.rows * 3));
  for (size_t rank = 0; rank < c.shards.size(); ++rank) {
    auto values = random_values<float>(c.rows * c.shards[rank].columns, 10 + rank, logit_scale);
    if (c.rows > 3) {  // masked
      std::fill_n(values.begin() + 3 * c.shards[rank].columns, c.shards[rank].columns,
                  std::numeric_limits<float>::quiet_NaN());
    }
    logits[rank] = rounded_to<T>(values);
    const auto logits64 = as_double(logits[rank]);
    cpu::cross_entropy_stats(all_stats.data() + static_cast<int64_t>(rank) * c.rows * 3, logits64.data(),
                             targets.data(), c.rows, c.shards[rank]);
  }
  const std::vector<float> all_stats32(all_stats.begin(), all_stats.end());
  constexpr double kScale = 0.25;
  for (size_t rank = 0; rank < c.shards.size(); ++rank) {
    const VocabShard shard = c.shards[rank];
    std::vector<double> losses(targets.size());
    auto gradient = as_double(logits[rank]);
    cpu::cross_entropy_finish(losses.data(), gradient.data(), all_stats.data(), targets.data(), mask.data(), num_ranks,
                              c.rows, shard, kScale, c.gradient);
    const std::string what = fmt::format("{} {} rows, rank {} of {}, {} of {} columns", dtype_name(DTypeOf<T>::value),
                                         c.rows, rank, num_ranks, shard.num_valid, shard.columns);
    const auto outputs = under_every_order(what, [&] {
      const OnDevice<T> device_logits(logits[rank], c.shift);
      const OnDevice<float> device_all_stats(all_stats32), device_mask(mask);
      const OnDevice<float> stats(static_cast<size_t>(c.rows * 3)), device_losses(targets.size());
      const OnDevice<int32_t> device_targets(targets);
      const Element element = element_of<T>();
      cuda::cross_entropy_stats(element, stats.get(), device_logits.get(), device_targets.get(), c.rows, shard,
                                nullptr);
      cuda::cross_entropy_finish(element, device_losses.get(), device_logits.get(), device_all_stats.get(),
                                 device_targets.get(), device_mask.get(), num_ranks, c.rows, shard, kScale, c.gradient,
                                 nullptr);
      return std::tuple(stats.values(), device_losses.values(), device_logits.values());
    });
    for (int64_t row = 0; row < c.rows; ++row) {
      if (mask[static_cast<size_t>(row)] == 0) {
        continue;
      }
      for (int64_t i = 0; i < 3; ++i) {
        const double actual = std::get<0>(outputs)[static_cast<size_t>(row * 3 + i)];
        const double expected = all_stats[static_cast<size_t>((static_cast<int64_t>(rank) * c.rows + row) * 3 + i)];
        if (actual != expected) {  // equal infinities have no distance
          EXPECT_LE(std::abs(actual - expected), 3e-6 * std::max(1.0, std::abs(expected))) << what << " stats " << i;
        }
      }
    }
    expect_close(std::get<1>(outputs), losses, 2e-6, what + " losses");
    if (c.gradient) {
      expect_rounded(std::get<2>(outputs), gradient, 1e-6, what + " gradient");
    } else {
      EXPECT_TRUE(same_bits(std::get<2>(outputs), logits[rank])) << what;
    }
  }
}

void compare_with_cpu(const Case& c, double logit_scale = 2) {
  for_all_elements([&](auto zero) { compare_elements<decltype(zero)>(c, logit_scale); });
}

// Whole packs of NaN, with and without numbers before and behind them: the sum of the row is NaN, and so is its loss.
TEST(CudaCrossEntropy, NoNaNIsLost) {
  constexpr int64_t kColumns = 64;
  for_all_elements([&](auto zero) {
    using T = decltype(zero);
    for (const int64_t num_numbers : {0, 8, 56}) {
      for (const bool nan_first : {true, false}) {
        auto values = random_values<float>(kColumns, 5, 1.0);
        std::fill_n(values.begin() + (nan_first ? 0 : num_numbers), kColumns - num_numbers,
                    std::numeric_limits<float>::quiet_NaN());
        const OnDevice<T> logits(rounded_to<T>(values));
        const OnDevice<int32_t> targets(std::vector<int32_t>{3});
        const OnDevice<float> stats(3);
        cuda::cross_entropy_stats(element_of<T>(), stats.get(), logits.get(), targets.get(), 1, {kColumns, 0, kColumns},
                                  nullptr);
        EXPECT_TRUE(std::isnan(stats.values()[1])) << num_numbers << " numbers, NaN first: " << nan_first;
      }
    }
  });
}

TEST(CudaCrossEntropy, EqualsTheCpu) {
  // A block takes 2048 columns at a time, or 4096 of 16 bits.
  for (const int64_t rows : {1, 4, 9}) {
    for (const int64_t columns : {1, 31, 33, 2048, 2049}) {
      compare_with_cpu({rows, {{columns, 0, columns}}});
    }
  }
  compare_with_cpu({2, {{4104, 0, 4099}}});
  compare_with_cpu({5, {{256, 0, 256}}, 1});
  compare_with_cpu({5, {{256, 0, 250}}, 0, false});
}

TEST(CudaCrossEntropy, EqualsTheCpuOnASplitVocabularyWithPadding) {
  compare_with_cpu({9, {{64, 0, 64}, {64, 64, 64}, {64, 128, 5}, {64, 133, 0}}});
  compare_with_cpu({4, {{1028, 0, 1028}, {1028, 1028, 1001}}});
}

TEST(CudaCrossEntropy, HasNoOverflowWithLargeLogits) {
  compare_with_cpu({4, {{100, 0, 100}, {100, 100, 77}}}, 300);
}

}  // namespace
}  // namespace ashlar::kernels
