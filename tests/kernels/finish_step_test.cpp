// What stands between the sums of a step and its update: loss, norm, clipping, and the refusal of numbers that are not
// finite.
#include <limits>

#include "kernels/optimizer.h"
#include "tests/kernels/half_support.h"

namespace ashlar::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const StepSettings kSettings{.nominal_targets = 64,
                             .clip_grad = 1,
                             .rate = 1e-2,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .epsilon = 1e-8,
                             .step = 3,
                             .skip_not_finite = true};

struct Step {
  std::vector<double> results = {0, 0, 0, 1};
  std::vector<double> scalars = std::vector<double>(kNumUpdateScalars, -1.0);

  void finish(double loss, double targets, const std::vector<double>& squares,
              const StepSettings& settings = kSettings) {
    const std::vector<double> totals = {loss, targets};
    on_queued_stream([&](Stream& stream) {
      finish_step(view(results), view(scalars), view(totals), view(squares), settings, stream);
      stream.synchronize();
    });
  }
};

TEST(FinishStep, MeansNormAndScalars) {
  Step step;
  step.finish(100, 32, {0.01, 0.02, 0.005});
  const double norm = 64.0 / 32 * std::sqrt(0.01 + 0.02 + 0.005);
  EXPECT_EQ(step.results, (std::vector<double>{100.0 / 32, norm, 32, 1}));
  const std::vector<double> expected = {
      2.0,  0.9, 0.95, 1 - 0.9, 1 - 0.95, 1e-2, 1e-2 / (1 - std::pow(0.9, 3.0)), 1 / std::sqrt(1 - std::pow(0.95, 3.0)),
      1e-8, 0};
  EXPECT_EQ(step.scalars, expected);
}

TEST(FinishStep, SquaresAreAddedInOrder) {
  const std::vector<double> squares = {1.0, 1e-16, 1e-16, 1e16};
  double total = 0;
  for (const double square : squares) {
    total += square;
  }
  Step step;
  step.finish(1, 64, squares);
  EXPECT_EQ(step.results[kStepGradNorm], std::sqrt(total));
}

TEST(FinishStep, ClipsToTheLargestNorm) {
  Step step;
  step.finish(1, 64, {25.0});
  EXPECT_EQ(step.results[kStepGradNorm], 5);
  EXPECT_EQ(step.scalars[kFactor], 1 * (1 / 5.0));
  step.finish(1, 64, {0.25});
  EXPECT_EQ(step.scalars[kFactor], 1);  // below the limit nothing is scaled up
  StepSettings settings = kSettings;
  settings.clip_grad = 0;
  step.finish(1, 64, {25.0}, settings);
  EXPECT_EQ(step.scalars[kFactor], 1);
}

TEST(FinishStep, NotFiniteSkipsAndStaysUntilItWasSeen) {
  for (const auto& [loss, square] : {std::pair{NAN, 1.0}, {kInfinity, 1.0}, {1.0, NAN}, {1.0, kInfinity}}) {
    Step step;
    step.finish(loss, 64, {0.5, square});
    EXPECT_EQ(step.results[kStepFinite], 0) << loss << " " << square;
    EXPECT_EQ(step.scalars[kSkip], 1) << loss << " " << square;
    step.finish(1, 64, {0.5});
    EXPECT_EQ(step.results[kStepLoss], 1.0 / 64);
    EXPECT_EQ(step.results[kStepFinite], 0) << "the host has not seen it yet";
    EXPECT_EQ(step.scalars[kSkip], 1);
    step.results[kStepFinite] = 1;
    step.finish(1, 64, {0.5});
    EXPECT_EQ(step.results[kStepFinite], 1);
    EXPECT_EQ(step.scalars[kSkip], 0);
  }
}

TEST(FinishStep, NotFiniteIsOnlyReportedWhereItIsNotChecked) {
  StepSettings settings = kSettings;
  settings.skip_not_finite = false;
  Step step;
  step.finish(NAN, 64, {0.5}, settings);
  EXPECT_EQ(step.results[kStepFinite], 0);
  EXPECT_EQ(step.scalars[kSkip], 0);
  step.finish(1, 64, {0.5}, settings);
  EXPECT_EQ(step.results[kStepFinite], 1);
}

TEST(FinishStep, WithoutTargetsNothingIsUpdated) {
  for (const bool skip : {false, true}) {
    StepSettings settings = kSettings;
    settings.skip_not_finite = skip;
    Step step;
    step.finish(0, 0, {0}, settings);
    EXPECT_EQ(step.results[kStepNumTargets], 0);
    EXPECT_EQ(step.scalars[kSkip], 1);
  }
}

TEST(FinishStep, RefusesStepZero) {
  StepSettings settings = kSettings;
  settings.step = 0;
  Step step;
  EXPECT_THROW(step.finish(1, 64, {1}, settings), Error);
}

constexpr int64_t kSize = 16384 + 33;

struct State {
  std::vector<float> param = random_values<float>(kSize, 1), first = random_values<float>(kSize, 2, 0.1),
                     second = std::vector<float>(kSize, 0.01f), grad = random_values<float>(kSize, 4);
};

TYPED_TEST_SUITE(Halves, HalfTypes);

TYPED_TEST(Halves, CopiesOfUpdatedParametersAreRoundedOnce) {
  Step step;
  step.finish(1, 64, {0.5});
  State with, without;
  std::vector<TypeParam> copy(kSize);
  const auto update = [&](State& state, TensorView to, bool sgd) {
    on_queued_stream([&](Stream& stream) {
      if (sgd) {
        sgd_step(view(state.param), view(state.grad), to, view(step.scalars), 0.1, stream);
      } else {
        adamw_step(view(state.param), view(state.first), view(state.second), view(state.grad), to, view(step.scalars),
                   0.1, stream);
      }
    });
  };
  for (const bool sgd : {false, true}) {
    update(with, view(copy), sgd);
    update(without, {}, sgd);
    EXPECT_TRUE(same_bits(with.param, without.param));
    EXPECT_TRUE(same_bits(with.first, without.first));
    EXPECT_TRUE(same_bits(with.second, without.second));
    for (size_t i = 0; i < copy.size(); ++i) {
      ASSERT_EQ(copy[i].bits, cpu::narrow<TypeParam>(with.param[i]).bits) << i;
    }
  }
}

TYPED_TEST(Halves, ASkippedUpdateTouchesNothing) {
  Step step;
  step.finish(NAN, 64, {0.5});
  State state;
  const State before = state;
  std::vector<TypeParam> copy(kSize, cpu::narrow<TypeParam>(7));
  on_queued_stream([&](Stream& stream) {
    adamw_step(view(state.param), view(state.first), view(state.second), view(state.grad), view(copy),
               view(step.scalars), 0.1, stream);
    sgd_step(view(state.param), view(state.grad), view(copy), view(step.scalars), 0.1, stream);
  });
  EXPECT_TRUE(same_bits(state.param, before.param));
  EXPECT_TRUE(same_bits(state.first, before.first));
  EXPECT_TRUE(same_bits(state.second, before.second));
  EXPECT_EQ(copy.front().bits, cpu::narrow<TypeParam>(7).bits);
}

TEST(AdamW, RefusesACopyOfAnotherTypeOrSize) {
  Step step;
  step.finish(1, 64, {0.5});
  State state;
  std::vector<float> wide(kSize);
  std::vector<BFloat16> narrow_copy(kSize - 1);
  with_threads(1, [&](Stream& stream) {
    EXPECT_THROW(sgd_step(view(state.param), view(state.grad), view(wide), view(step.scalars), 0, stream), Error);
    EXPECT_THROW(sgd_step(view(state.param), view(state.grad), view(narrow_copy), view(step.scalars), 0, stream),
                 Error);
  });
}

}  // namespace
}  // namespace ashlar::kernels
