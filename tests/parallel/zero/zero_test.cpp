// Parameter arenas, gradient sums and the optimizer, on made-up gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "parallel/model/gpt.h"
#include "parallel/zero/grad_reducer.h"
#include "parallel/zero/optimizer.h"
#include "parallel/zero/value_gather.h"
#include "tests/parallel/zero/direct_update.h"
#include "tests/support/compare.h"
#include "tests/support/grad_norm.h"
#include "tests/support/run_ranks.h"

namespace ashlar {
namespace {

GptConfig small_config(bool tied = true) {
  return {.num_layers = 2,
          .width = 16,
          .num_heads = 4,
          .ffn = 24,
          .max_positions = 8,
          .vocab = 13,
          .padded_vocab = 16,
          .tied = tied};
}

// A rank's stage and its parameters, without executor and data.
struct Model {
  Model(RankContext& rank, const GridShape& shape, const GptConfig& config = small_config(),
        const Sharding& sharding = {.bucket_elements = 100})
      : stream(rank.device.create_stream()),
        grid(rank, shape),
        chunk(make_stage(config, std::vector<int64_t>(static_cast<size_t>(shape.pipeline), 2 / shape.pipeline),
                         grid.coordinate().pipeline, grid.coordinate().tensor, shape.tensor)),
        store(rank.device, grid, {stage_parameters(*chunk)}, config.dtype, sharding) {}

  // Gradients that depend on name and global index; a tied table's lies half in each of its two uses.
  void fill_gradients(double factor = 1) {
    for (const ParameterStore::Entry& entry : store.entries()) {
      const Parameter& parameter = *entry.parameter;
      const double part = parameter.tied_copy || parameter.tied_first ? 0.5 * factor : factor;
      const std::vector<float> values =
          random_floats("gradient " + parameter.name, static_cast<size_t>(parameter.shard.global.num_elements()));
      std::fill_n(parameter.grad.as<float>(), parameter.grad.num_elements(), 0.0f);
      parameter.shard.for_each_run([&](int64_t local, int64_t global, int64_t length) {
        for (int64_t at = 0; at < length; ++at) {
          parameter.grad.as<float>()[local + at] =
              static_cast<float>(part * static_cast<double>(values[static_cast<size_t>(global + at)]));
        }
      });
    }
  }

  std::unique_ptr<Stream> stream;
  ProcessGrid grid;
  std::unique_ptr<StageChunk> chunk;
  ParameterStore store;
};

TEST(ParameterStore, LaysTensorsOutOnceAndAligned) {
  run_ranks(1, [](RankContext& rank) {
    Model model(rank, {1, 1, 1});
    const auto& entries = model.store.entries();
    const auto place = [&](const TensorView& of) { return of.data - entries.front().parameter->grad.data; };
    ptrdiff_t end = 0;
    int64_t elements = 0;
    for (const ParameterStore::Entry& entry : entries) {
      EXPECT_EQ(place(entry.parameter->grad), end);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(entry.parameter->value.data) % 64, 0u);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(entry.parameter->grad.data) % 64, 0u);
      end += (entry.parameter->grad.num_elements() + 31) / 32 * 32 * static_cast<ptrdiff_t>(sizeof(float));
      elements += entry.shares_value ? 0 : entry.parameter->value.num_elements();
    }
    EXPECT_EQ(model.store.grad_bytes(), static_cast<size_t>(end));
    EXPECT_EQ(model.store.num_local_elements(), elements);

    // The tied copy has a gradient of its own behind all others, and the first use's value.
    EXPECT_TRUE(entries.back().shares_value);
    EXPECT_EQ(entries.back().parameter->value.data, entries.front().parameter->value.data);
    EXPECT_NE(entries.back().parameter->grad.data, entries.front().parameter->grad.data);
    EXPECT_EQ(model.store.grad_bytes() - model.store.value_bytes(),
              Arena::aligned(entries.back().parameter->grad.bytes()));
  });
}

TEST(ParameterStore, InitialValues) {
  run_ranks(1, [](RankContext& rank) {
    Model model(rank, {1, 1, 1});
    model.store.initialize(3);
    ValueGather values(model.grid, *model.stream, model.store, false);
    const uint64_t once = values.hash_values();
    model.store.initialize(4);
    EXPECT_NE(values.hash_values(), once);
    model.store.initialize(3);
    EXPECT_EQ(values.hash_values(), once);
    for (const ParameterStore::Entry& entry : model.store.entries()) {
      const Parameter& parameter = *entry.parameter;
      const int64_t count = parameter.shard.num_valid_elements();
      double mean = 0, square = 0;
      for (const double value : to_doubles(parameter.value)) {
        mean += value / static_cast<double>(count);
        square += value * value / static_cast<double>(count);
      }
      const double deviation = std::sqrt(std::max(0.0, square - mean * mean));
      if (parameter.init_std == 0) {
        EXPECT_EQ(mean, parameter.init_mean) << parameter.name;
        EXPECT_EQ(deviation, 0) << parameter.name;
      } else {  // at least 128 draws: three deviations of the estimate are 19 %
        EXPECT_NEAR(deviation, parameter.init_std, 0.2 * parameter.init_std) << parameter.name;
        EXPECT_NEAR(mean, 0, 0.3 * parameter.init_std) << parameter.name;
      }
    }
  });
}

// The norm's bits do not depend on stages or data ranks, and its value not on tensor ranks.
TEST(Optimizer, NormIsTheSameOnEveryGrid) {
  for (const bool tied : {true, false}) {
    double expected = 0;
    for (const GridShape& shape : {GridShape{1, 1, 1}, GridShape{1, 2, 1}, GridShape{1, 2, 2}, GridShape{2, 1, 1},
                                   GridShape{4, 1, 1}, GridShape{2, 2, 1}}) {
      std::mutex mutex;
      run_ranks(shape.num_ranks(), [&](RankContext& rank) {
        Model model(rank, shape, small_config(tied));
        GradReducer reducer(model.grid, *model.stream, model.store);
        Optimizer optimizer(rank, model.grid, *model.stream, model.store, {});
        model.fill_gradients(1.0 / shape.data);
        reducer.reduce(model.chunk->stage());
        reducer.combine_tied();
        const double norm = grad_norm(optimizer, *model.stream, 2.0);
        const std::lock_guard lock(mutex);
        if (shape.num_ranks() == 1) {
          double sum = 0;
          for (const ParameterStore::Entry& entry : model.store.entries()) {
            for (const double value : to_doubles(entry.parameter->grad)) {
              sum += entry.parameter->tied_copy ? 0 : value * value;
            }
          }
          expected = norm;
          EXPECT_NEAR(norm, 2 * std::sqrt(sum), 1e-12 * norm);
        } else if (shape.tensor == 1) {
          EXPECT_EQ(norm, expected) << shape.text();
        } else {
          EXPECT_NEAR(norm, expected, 1e-12 * expected) << shape.text();
        }
      });
    }
  }
}

TEST(Optimizer, NormPassesInfinityAndNanOn) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (int bad_rank = 0; bad_rank < 4; ++bad_rank) {
      run_ranks(4, [&](RankContext& rank) {
        Model model(rank, {2, 2, 1});
        Optimizer optimizer(rank, model.grid, *model.stream, model.store, {});
        model.fill_gradients();
        if (rank.world.rank() == bad_rank) {
          for (const ParameterStore::Entry& entry : model.store.entries()) {
            if (entry.counted && entry.parameter->shard.is_split()) {
              entry.parameter->grad.as<float>()[1] = bad;
              break;
            }
          }
        }
        EXPECT_FALSE(std::isfinite(grad_norm(optimizer, *model.stream, 1.0))) << "rank " << rank.world.rank();
      });
    }
  }
}

// Buckets of any size give the same bits; one all-reduce each, none across layers.
TEST(GradReducer, BucketsCutAnywhere) {
  std::vector<std::vector<double>> results;
  std::mutex mutex;
  for (const int64_t bucket : {1, 32, 100, 1000, 40000000}) {
    run_ranks(2, [&](RankContext& rank) {
      Model model(rank, {1, 1, 2}, small_config(), {.bucket_elements = bucket});
      GradReducer reducer(model.grid, *model.stream, model.store);
      model.fill_gradients(1.0 + 0.1 * rank.world.rank());
      reducer.reduce(0);
      const int64_t most = (bucket + 31) / 32 * 32;
      int64_t expected = 0;
      for (const auto& layer : model.chunk->layers()) {
        int64_t in_row = 0;  // a tied table is alone in its buckets
        for (const Parameter* parameter : layer->parameters()) {
          const int64_t elements = (parameter->grad.num_elements() + 31) / 32 * 32;
          if (parameter->tied_first || parameter->tied_copy) {
            expected += (elements + most - 1) / most;
          } else {
            in_row += elements;
          }
        }
        expected += (in_row + most - 1) / most;
      }
      EXPECT_EQ(model.grid.data().num_ops(OpKind::kAllReduce), expected);
      std::vector<double> sums;
      for (const FlatPiece& piece : model.store.owned()) {
        const std::vector<double> values = to_doubles(model.store.grad_of(piece));
        sums.insert(sums.end(), values.begin(), values.end());
      }
      const std::lock_guard lock(mutex);
      results.push_back(sums);
    });
  }
  for (const auto& result : results) {
    EXPECT_EQ(result, results.front());
  }
  EXPECT_NE(results.front()[0], 0);
}

TEST(GradReducer, LeavesOtherStagesAlone) {
  run_ranks(1, [](RankContext& rank) {
    Model model(rank, {1, 1, 1});
    GradReducer reducer(model.grid, *model.stream, model.store);
    reducer.reduce(1);
    EXPECT_EQ(model.grid.data().num_ops(OpKind::kAllReduce), 0);
  });
}

// The layer that is needed next is on its way before the one in front of it is given back, also in the next pass of a
// window; one that is needed again at once is not gathered again.
TEST(ValueGather, OneLayerAheadAcrossThePassesOfAWindow) {
  struct Need {
    size_t layer, next;
    int by_need, by_done;  // layers that were gathered until then
  };
  // Four layers, one collective each. Two forward and two backward passes; backward the first layer is not read. The
  // second layer and the last have one place, so the last is asked for when the second is given back. So it is with the
  // ends of the stage where they are too large to lie beside each other.
  for (const int64_t vocab : {16, 4096}) {
    const int jump = vocab == 16 ? 5 : 4;
    const std::vector<Need> window = {{0, 1, 2, 2},   {1, 2, 3, 3},         {2, 3, 4, 4},   {3, 0, jump, 5},
                                      {0, 1, 6, 6},   {1, 2, 7, 7},         {2, 3, 8, 8},   {3, 3, 8, 8},
                                      {3, 2, 9, 9},   {2, 1, 10, 10},       {1, 3, 10, 11}, {3, 2, 12, 12},
                                      {2, 1, 13, 13}, {1, kNoLayer, 13, 13}};
    GptConfig config = small_config(false);
    config.vocab = config.padded_vocab = vocab;
    for (const bool overlap : {true, false}) {
      run_ranks(2, [&](RankContext& rank) {
        Model model(rank, {1, 1, 2}, config, {.zero_stage = 3, .num_shards = 2, .bucket_elements = 1 << 20});
        ASSERT_EQ(model.store.layout().buckets.size(), 4u);
        ValueGather values(model.grid, *model.stream, model.store, overlap);
        const auto gathered = [&] { return model.grid.data().num_ops(OpKind::kAllGather); };
        values.open(0, 0);
        EXPECT_EQ(gathered(), overlap ? 1 : 0);
        for (size_t at = 0; at < window.size(); ++at) {
          const auto& [layer, next, by_need, by_done] = window[at];
          values.need(0, layer, next);
          EXPECT_TRUE(!overlap || gathered() == by_need) << at << ": " << gathered();
          values.done(0, layer);
          EXPECT_TRUE(!overlap || gathered() == by_done) << at << ": " << gathered();
        }
        values.close();
        EXPECT_EQ(gathered(), 13);
      });
    }
  }
}

// One table, two gradients: the sum reaches both uses, on one rank and on two, and is added once.
TEST(GradReducer, TiedTableGetsOneSum) {
  for (const GridShape& shape : {GridShape{1, 1, 1}, GridShape{1, 2, 1}, GridShape{2, 2, 1}}) {
    run_ranks(shape.num_ranks(), [&](RankContext& rank) {
      Model model(rank, shape);
      GradReducer reducer(model.grid, *model.stream, model.store);
      for (const ParameterStore::Entry& entry : model.store.entries()) {
        std::fill_n(entry.parameter->grad.as<float>(), entry.parameter->grad.num_elements(),
                    entry.parameter->tied_copy ? 3.0f : 4.0f);
      }
      reducer.combine_tied();
      for (const ParameterStore::Entry& entry : model.store.entries()) {
        const bool is_sum = entry.parameter->tied_first || (entry.parameter->tied_copy && !entry.shares_value);
        const float expected = is_sum ? 7.0f : entry.parameter->tied_copy ? 3.0f : 4.0f;
        for (const double value : to_doubles(entry.parameter->grad)) {
          ASSERT_EQ(value, static_cast<double>(expected)) << entry.parameter->name << " " << shape.text();
        }
      }
    });
  }
}

TEST(Optimizer, StepsOfSgdAndAdam) {
  run_ranks(1, [](RankContext& rank) {
    for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
      Model model(rank, {1, 1, 1});
      model.store.initialize(1);
      Optimizer optimizer(rank, model.grid, *model.stream, model.store,
                          {.kind = kind, .weight_decay = 0.1, .clip_grad = 1});
      model.fill_gradients();
      GradReducer(model.grid, *model.stream, model.store).combine_tied();
      std::vector<std::vector<double>> before;
      for (const ParameterStore::Entry& entry : model.store.entries()) {
        before.push_back(to_doubles(entry.parameter->value));
      }
      const double norm = grad_norm(optimizer, *model.stream, 0.5);
      ASSERT_GT(norm, 1);
      test::DirectUpdate(rank, *model.stream, optimizer)(0.01, 0.5);
      EXPECT_EQ(optimizer.num_updates(), 1);
      EXPECT_EQ(optimizer.state_bytes() > 0, kind == OptimizerKind::kAdamW);
      for (size_t tensor = 0; tensor + 1 < before.size(); ++tensor) {  // the last is the tied copy
        const Parameter& parameter = *model.store.entries()[tensor].parameter;
        const std::vector<double> grad = to_doubles(parameter.grad), now = to_doubles(parameter.value);
        for (size_t at = 0; at < now.size(); ++at) {
          const double g = grad[at] * 0.5 / norm;
          const double step = kind == OptimizerKind::kSgd ? g : g / (std::abs(g) + 1e-8);  // Adam's first step
          const double decayed = before[tensor][at] * (parameter.decays ? 1 - 0.01 * 0.1 : 1);
          EXPECT_NEAR(now[at], decayed - 0.01 * step, 1e-7 + 1e-6 * std::abs(now[at])) << parameter.name;
        }
      }
    }
  });
}

}  // namespace
}  // namespace ashlar
