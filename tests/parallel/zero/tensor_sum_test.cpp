// The sum over the tensor axis of gradients that ranks have parts of: packed or in place, marked ones only.
#include "parallel/zero/tensor_sum.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/run_ranks.h"

namespace ashlar {
namespace {

struct Gradient {
  int64_t size;
  bool marked;
};

TEST(TensorSum, SumsWhatIsMarkedAndLeavesTheRest) {
  const std::vector<std::vector<Gradient>> sizes{{{5, true}, {3, false}, {1, true}, {TensorSum::kSummedInPlace, true}},
                                                 {{7, false}},
                                                 {{TensorSum::kSummedInPlace - 1, true}}};
  constexpr int kRanks = 3;
  run_ranks(kRanks, [&](RankContext& rank) {
    const auto stream = rank.device.create_stream();
    std::vector<std::vector<Parameter>> parameters;
    std::vector<Tensor> memory;
    for (const auto& set : sizes) {
      auto& of = parameters.emplace_back();
      for (const Gradient& gradient : set) {
        Parameter& parameter = of.emplace_back();
        parameter.shard = ShardSpec::replicated({gradient.size});
        parameter.sum_over_tensor = gradient.marked;
        parameter.grad = memory.emplace_back(rank.device, DType::kF32, Shape{gradient.size}, "test");
        for (int64_t at = 0; at < gradient.size; ++at) {
          parameter.grad.as<float>()[at] = static_cast<float>((rank.world.rank() + 1) * (at % 100));
        }
      }
    }
    std::vector<std::vector<Parameter*>> sets;
    for (auto& of : parameters) {
      auto& set = sets.emplace_back();
      for (Parameter& parameter : of) {
        set.push_back(&parameter);
      }
    }
    EXPECT_EQ(TensorSum::num_packed(sets[0]), 6);
    EXPECT_EQ(TensorSum::num_summed(sets[0]), 6 + TensorSum::kSummedInPlace);
    EXPECT_EQ(TensorSum::num_summed(sets[1]), 0);
    const int64_t before = rank.device.allocated_bytes();
    TensorSum tensor_sum(rank.device, rank.world, sets);
    EXPECT_EQ(rank.device.allocated_bytes() - before, 4 * (TensorSum::kSummedInPlace - 1));  // of the largest set
    for (size_t set = 0; set < sets.size(); ++set) {
      tensor_sum.sum(set, *stream);
    }
    stream->synchronize();
    for (size_t set = 0; set < sets.size(); ++set) {
      for (size_t i = 0; i < sets[set].size(); ++i) {
        const int factor = sizes[set][i].marked ? 1 + 2 + 3 : rank.world.rank() + 1;
        for (int64_t at = 0; at < sizes[set][i].size; ++at) {
          ASSERT_EQ(sets[set][i]->grad.as<float>()[at], static_cast<float>(factor * (at % 100)))
              << "set " << set << " tensor " << i << " element " << at;
        }
      }
    }
    // Two messages of the first set, one of the last.
    EXPECT_EQ(rank.world.num_ops(OpKind::kAllReduce), 3);
  });
}

}  // namespace
}  // namespace ashlar
