// Every layer's gradients against central differences in fp64: on one tensor rank, on two, and on two that hold parts
// of the rows.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "tests/parallel/layers/layer_cases.h"
#include "tests/support/run_ranks.h"

namespace ashlar::test {
namespace {

// With a step of 1e-5, rounding and the third derivative together stay below 4.0e-10 (measured).
constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-8;
constexpr int64_t kMostElements = 24;  // of each tensor, evenly spread

class Gradients : public testing::TestWithParam<LayerCase> {};

// Local index of a global element, -1 where another rank holds it.
int64_t local_index(const ShardSpec& shard, int64_t element) {
  int64_t found = -1;
  shard.for_each_run([&](int64_t local, int64_t global, int64_t length) {
    if (element >= global && element < global + length) {
      found = local + element - global;
    }
  });
  return found;
}

void check_gradients(RankContext& rank, const LayerCase& c, const BatchShape& shape, std::mutex& mutex) {
  const auto layer = c.make(rank.world.rank(), rank.world.size(), DType::kF64);
  LayerHarness at(rank, *layer, shape, kWidth, kVocab, DType::kF64);
  at.context.grad_scale = 0.37;
  at.context.masks = {.seed = 3, .step = 4, .first_sample = 5};
  at.forward();
  at.backward_input();
  at.backward_weight();
  at.stream->synchronize();
  const std::vector<double> dx = to_doubles(at.dx);
  std::vector<std::vector<double>> grads;
  for (const Parameter* parameter : layer->parameters()) {
    if (shape.splits_rows() && !parameter->shard.is_split()) {  // each rank has the part of its own rows
      rank.world.all_reduce(parameter->grad, ReduceOp::kSum, *at.stream).wait_host();
    }
    grads.push_back(to_doubles(parameter->grad));
  }

  // All ranks move the same global element, wherever it is held; everyone sees the same objective.
  const auto difference = [&](TensorView values, int64_t local) {
    const double before = local < 0 ? 0 : get(values, local);
    double objective[2];
    for (int side = 0; side < 2; ++side) {
      if (local >= 0) {
        set(values, local, before + (side == 0 ? -kStep : kStep));
      }
      objective[side] = at.objective();
    }
    if (local >= 0) {
      set(values, local, before);
    }
    return (objective[1] - objective[0]) / (2 * kStep);
  };
  const auto expect = [&](double gradient, double slope, const std::string& what, int64_t element) {
    const std::lock_guard lock(mutex);
    EXPECT_NEAR(gradient, slope, kTolerance * (1 + std::abs(slope)))
        << c.name << " " << what << " element " << element << " on tensor rank " << rank.world.rank();
  };

  size_t index = 0;
  for (Parameter* parameter : layer->parameters()) {
    const int64_t count = parameter->shard.global.num_elements();
    const int64_t stride = std::max<int64_t>(1, count / kMostElements);
    for (int64_t element = 0; element < count; element += stride) {
      const int64_t local = local_index(parameter->shard, element);
      const double slope = difference(parameter->value, local);
      if (local >= 0) {
        expect(grads[index][static_cast<size_t>(local)], slope, parameter->name, element);
      }
    }
    double padding = 0;
    std::vector<bool> valid(grads[index].size(), false);
    parameter->shard.for_each_run(
        [&](int64_t local, int64_t, int64_t length) { std::fill_n(valid.begin() + local, length, true); });
    for (size_t element = 0; element < valid.size(); ++element) {
      padding += valid[element] ? 0 : std::abs(grads[index][element]);
    }
    expect(padding, 0, parameter->name + " padding", -1);
    ++index;
  }
  if (!c.name.starts_with("embedding")) {
    const int64_t own = at.x.num_elements(), first = at.context.rows().first * kWidth;
    for (int64_t element = 0; element < own * shape.row_parts; ++element) {
      const bool is_mine = element >= first && element < first + own;
      const double slope = difference(at.x, is_mine ? element - first : -1);
      if (is_mine) {
        expect(dx[static_cast<size_t>(element - first)], slope, "input", element);
      }
    }
  }
}

TEST_P(Gradients, EqualCentralDifferences) {
  for (const int tensor_size : {1, 2}) {
    std::mutex mutex;
    run_ranks(tensor_size, [&](RankContext& rank) { check_gradients(rank, GetParam(), {2, 3}, mutex); });
  }
}

// The second rank's rows begin in the middle of a sample.
TEST_P(Gradients, EqualCentralDifferencesOnPartsOfTheRows) {
  std::mutex mutex;
  run_ranks(
      2, [&](RankContext& rank) { check_gradients(rank, GetParam(), {.batch = 3, .seq = 2, .row_parts = 2}, mutex); });
}

std::string case_name(const testing::TestParamInfo<LayerCase>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Layers, Gradients, testing::ValuesIn(layer_cases()), case_name);

}  // namespace
}  // namespace ashlar::test
