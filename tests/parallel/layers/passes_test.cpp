// What the passes promise beside their numbers: equal bits split or fused, overwrite or add, the declared bytes, and
// the traffic.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "tests/parallel/layers/layer_cases.h"
#include "tests/support/run_ranks.h"

namespace ashlar::test {
namespace {

constexpr BatchShape kShape{2, 5};

class Passes : public testing::TestWithParam<LayerCase> {
 protected:
  std::mutex mutex_;
  // Runs `body` on one and two tensor ranks, and on two that hold parts of the rows, with a harness in fp32; failures
  // of all ranks are kept.
  static void on_ranks(const LayerCase& c, const std::function<void(RankContext&, LayerHarness&)>& body) {
    for (const auto& [tensor_size, row_parts] : {std::pair{1, 1}, std::pair{2, 1}, std::pair{2, 2}}) {
      run_ranks(tensor_size, [&, row_parts = row_parts](RankContext& rank) {
        const auto layer = c.make(rank.world.rank(), rank.world.size(), DType::kF32);
        LayerHarness at(rank, *layer, {kShape.batch, kShape.seq, row_parts}, kWidth, kVocab, DType::kF32);
        body(rank, at);
      });
    }
  }
};

std::vector<std::vector<double>> gradients_of(Layer& layer) {
  std::vector<std::vector<double>> all;
  for (const Parameter* parameter : layer.parameters()) {
    all.push_back(to_doubles(parameter->grad));
  }
  return all;
}

TEST_P(Passes, WeightGradientsMayComeLater) {
  on_ranks(GetParam(), [&](RankContext& rank, LayerHarness& late) {
    const auto layer = GetParam().make(rank.world.rank(), rank.world.size(), DType::kF32);
    LayerHarness fused(rank, *layer, late.shape, kWidth, kVocab, DType::kF32);
    fused.forward();
    fused.backward_input();
    fused.backward_weight();
    const auto expected = gradients_of(*layer);
    const std::vector<double> expected_dx = to_doubles(fused.dx);

    late.forward();
    late.backward_input();
    // Other work of the same layer in between, with other memory, and a used workspace.
    fused.forward();
    fused.backward_input();
    std::fill_n(late.context.workspace.take(0), late.layer.bytes(late.shape).workspace, std::byte{0x7f});
    std::fill_n(late.y.data, late.y.bytes(), std::byte{0x7f});
    late.backward_weight();
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(gradients_of(late.layer), expected);
    if (!GetParam().name.starts_with("embedding")) {
      EXPECT_EQ(to_doubles(late.dx), expected_dx);
    }
  });
}

TEST_P(Passes, OverwriteReplacesAndAddAdds) {
  on_ranks(GetParam(), [&](RankContext&, LayerHarness& at) {
    for (Parameter* parameter : at.layer.parameters()) {
      std::fill_n(parameter->grad.data, parameter->grad.bytes(), std::byte{0x7f});  // about 3e38
    }
    at.forward();
    at.backward_input();
    at.backward_weight();
    const auto once = gradients_of(at.layer);
    at.backward_weight();
    const auto overwritten_twice = gradients_of(at.layer);
    at.context.grad_write = kernels::Write::kAdd;
    at.backward_weight();
    const auto twice = gradients_of(at.layer);
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(overwritten_twice, once);
    for (size_t tensor = 0; tensor < once.size(); ++tensor) {
      for (size_t element = 0; element < once[tensor].size(); ++element) {
        EXPECT_NEAR(twice[tensor][element], 2 * once[tensor][element], 1e-6 * std::abs(once[tensor][element]) + 1e-6);
      }
    }
  });
}

TEST_P(Passes, TakeExactlyTheDeclaredBytes) {
  on_ranks(GetParam(), [&](RankContext&, LayerHarness& at) {
    // The harness gives exactly what bytes() says; one alignment step less is refused.
    at.forward();
    at.backward_input();
    at.backward_weight();
    const LayerBytes bytes = at.layer.bytes(at.shape);
    std::vector<std::byte> memory(bytes.saved + bytes.pending + 2 * Arena::kAlignment);
    EXPECT_EQ(at.workspace.high_water(), bytes.workspace);
    EXPECT_EQ(at.workspace.used(), 0u);
    if (bytes.saved > 0) {
      LayerMemory small = at.memory();
      small.saved = Arena(memory.data(), bytes.saved - Arena::kAlignment);
      EXPECT_THROW(at.layer.backward_weight(at.context, at.dy, at.x, small), Error);
    }
    if (bytes.pending > 0) {
      LayerMemory small = at.memory();
      small.pending = Arena(memory.data(), bytes.pending - Arena::kAlignment);
      EXPECT_THROW(at.layer.backward_weight(at.context, at.dy, at.x, small), Error);
    }
  });
}

std::string case_name(const testing::TestParamInfo<LayerCase>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Layers, Passes, testing::ValuesIn(layer_cases()), case_name);

// 4 bytes * [ s b h (4 + (4 + 2f/h) / t) + statistics ]: two norm outputs, the residual stream between the halves and
// the block's output in full; query, key, value, the heads' output and twice the hidden layer split. The statistics:
// mean and reciprocal deviation of two norms, 16 s b bytes, and one number per head and position, 4 a b s / t bytes.
// The block's input is the output of the layer before it. Sizes are multiples of 64 bytes here, so this is exact.
TEST(BlockBytes, FollowTheFormula) {
  const int64_t s = 16, b = 4, h = 64, a = 4, f = 192;
  for (const int t : {1, 2, 4}) {
    const TransformerBlock block(
        "h.0", {.width = h, .num_heads = a, .ffn = f, .recompute = {}, .tensor_rank = 0, .tensor_size = t});
    const size_t output = static_cast<size_t>(4 * s * b * h);
    const int64_t formula = 4 * s * b * h * 4 + 4 * s * b * (4 * h + 2 * f) / t + 16 * s * b + 4 * a * b * s / t;
    EXPECT_EQ(block.bytes({b, s}).saved + output, static_cast<size_t>(formula)) << "t " << t;
    // With parts of the rows every term is a part, the norms' statistics too.
    const int64_t whole = 4 * s * b * (8 * h + 2 * f) + 16 * s * b + 4 * a * b * s;
    EXPECT_EQ(block.bytes({b, s, t}).saved + output / static_cast<size_t>(t), static_cast<size_t>(whole / t));
  }
  // Odd sizes: each of the ten saved tensors may be rounded up by less than 64 bytes.
  const TransformerBlock odd("h.0", {.width = 15, .num_heads = 3, .ffn = 21, .recompute = {}});
  const int64_t formula = 4 * 7 * 1 * (15 * 4 + 4 * 15 + 2 * 21) + 16 * 7 + 4 * 3 * 7 - 4 * 7 * 15;
  EXPECT_GE(odd.bytes({1, 7}).saved, static_cast<size_t>(formula));
  EXPECT_LT(odd.bytes({1, 7}).saved, static_cast<size_t>(formula) + 11 * 64);
}

struct Traffic {
  int64_t all_reduces = 0, all_gathers = 0, reduce_scatters = 0, others = 0, all_reduce_bytes = 0, all_gather_bytes = 0;

  explicit Traffic(const Communicator& comm)
      : all_reduces(comm.num_ops(OpKind::kAllReduce)),
        all_gathers(comm.num_ops(OpKind::kAllGather)),
        reduce_scatters(comm.num_ops(OpKind::kReduceScatter)),
        others(comm.num_ops(OpKind::kBroadcast) + comm.num_ops(OpKind::kExchange)),
        all_reduce_bytes(comm.bytes_sent(OpKind::kAllReduce)),
        all_gather_bytes(comm.bytes_sent(OpKind::kAllGather)) {}
};

// Operations and bytes of forward, backward_input and backward_weight.
void expect_traffic(const LayerMaker& make, const std::vector<int64_t>& all_reduces,
                    const std::vector<int64_t>& all_gather_bytes) {
  run_ranks(2, [&](RankContext& rank) {
    const auto layer = make(rank.world.rank(), 2, DType::kF32);
    LayerHarness at(rank, *layer, kShape, kWidth, kVocab, DType::kF32);
    const auto activation_bytes = static_cast<int64_t>(at.x.bytes());
    for (size_t pass = 0; pass < 3; ++pass) {
      const Traffic before(rank.world);
      pass == 0 ? at.forward() : pass == 1 ? at.backward_input() : at.backward_weight();
      const Traffic after(rank.world);
      EXPECT_EQ(after.all_reduces - before.all_reduces, all_reduces[pass]) << layer->name() << " pass " << pass;
      EXPECT_EQ(after.all_reduce_bytes - before.all_reduce_bytes, all_reduces[pass] * activation_bytes);
      EXPECT_EQ(after.all_gathers - before.all_gathers, all_gather_bytes[pass] > 0 ? 1 : 0);
      EXPECT_EQ(after.all_gather_bytes - before.all_gather_bytes, all_gather_bytes[pass]);
      EXPECT_EQ(after.reduce_scatters - before.reduce_scatters + after.others - before.others, 0);
    }
  });
}

// One all-reduce of the activations for each pair of linear layers and direction, and nothing else.
TEST(Traffic, OneAllReduceForEachPairAndDirection) {
  expect_traffic([](int r, int t, DType d) { return make_block(r, t, d, kernels::Activation::kGeluTanh); }, {2, 2, 0},
                 {0, 0, 0});
  expect_traffic([](int r, int t, DType d) { return std::make_unique<LinearPair>(r, t, d); }, {1, 1, 0}, {0, 0, 0});
  expect_traffic([](int r, int t, DType d) { return std::make_unique<EmbeddingLayer>(vocabulary(r, t, d, true)); },
                 {1, 0, 0}, {0, 0, 0});
}

// With parts of the rows: the operations of forward, backward_input and backward_weight.
struct Ops {
  int64_t reduce_scatters, all_gathers;
};
void expect_split_traffic(const LayerMaker& make, const std::vector<Ops>& expected) {
  run_ranks(2, [&](RankContext& rank) {
    const auto layer = make(rank.world.rank(), 2, DType::kF32);
    LayerHarness at(rank, *layer, {kShape.batch, kShape.seq, 2}, kWidth, kVocab, DType::kF32);
    for (size_t pass = 0; pass < 3; ++pass) {
      const Traffic before(rank.world);
      pass == 0 ? at.forward() : pass == 1 ? at.backward_input() : at.backward_weight();
      const Traffic after(rank.world);
      EXPECT_EQ(after.reduce_scatters - before.reduce_scatters, expected[pass].reduce_scatters)
          << layer->name() << " pass " << pass;
      EXPECT_EQ(after.all_gathers - before.all_gathers, expected[pass].all_gathers)
          << layer->name() << " pass " << pass;
      EXPECT_EQ(after.all_reduces - before.all_reduces + after.others - before.others, 0);
    }
  });
}

TEST(Traffic, PartsOfTheRowsScatterWhatTheySumAndGatherInputs) {
  expect_split_traffic([](int r, int t, DType d) { return make_block(r, t, d, kernels::Activation::kGeluTanh, 0.3); },
                       {{2, 2}, {2, 2}, {0, 2}});
  expect_split_traffic(
      [](int r, int t, DType d) { return std::make_unique<EmbeddingLayer>(vocabulary(r, t, d, true)); },
      {{1, 0}, {0, 0}, {0, 1}});
  expect_split_traffic([](int r, int t, DType d) { return std::make_unique<LossHead>(vocabulary(r, t, d, false)); },
                       {{0, 2}, {1, 0}, {0, 1}});  // forward the statistics too
}

// Logits are never gathered: three numbers for each row are, whatever the vocabulary.
TEST(Traffic, HeadExchangesThreeNumbersForEachRow) {
  expect_traffic([](int r, int t, DType d) { return std::make_unique<LossHead>(vocabulary(r, t, d, false)); },
                 {0, 1, 0}, {kShape.batch * kShape.seq * 3 * 4, 0, 0});
}

}  // namespace
}  // namespace ashlar::test
