#include "kernels/cuda/optimizer.h"

#include <limits>

#include "kernels/cpu/optimizer.h"
#include "kernels/update_scalars.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

constexpr int64_t kSizes[] = {1, 31, 33, 1024, 1025};
constexpr double kDecay = 0.1;

StepSettings some_settings() {
  return {.nominal_targets = 64,
          .clip_grad = 1,
          .rate = 3e-4,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .epsilon = 1e-8,
          .step = 3,
          .skip_not_finite = true};
}

// The scalars of an update, as finish_step leaves them.
std::vector<double> some_scalars(bool skip = false) {
  std::vector<double> scalars(kNumUpdateScalars);
  set_host_scalars(scalars.data(), some_settings());
  scalars[kFactor] = 0.7;
  scalars[kSkip] = skip ? 1 : 0;
  return scalars;
}

struct Numbers {
  explicit Numbers(int64_t n)
      : param(random_values<float>(n, 1)),
        first(random_values<float>(n, 2, 0.1)),
        second(random_values<float>(n, 3, 0.1)),
        grad(random_values<float>(n, 4)) {
    for (float& v : second) {
      v *= v;
    }
  }
  std::vector<float> param, first, second, grad;
};

// By how many elements operands lie off 16 bytes.
struct Shifts {
  size_t state = 0, grad = 0, copy = 0;
};

// With a copy of T, or with none when T is float.
template <typename T, typename Grad>
void compare_updates(int64_t n, const Shifts& shifts) {
  constexpr bool kHasCopy = !std::is_same_v<T, float>;
  using Copy = std::conditional_t<kHasCopy, T, BFloat16>;
  const Numbers before(n);
  const auto grad = rounded_to<Grad>(before.grad);
  const std::vector<double> scalars = some_scalars();
  const std::string what = fmt::format("n {} shifts {} {} {} copy {} gradients {}", n, shifts.state, shifts.grad,
                                       shifts.copy, dtype_name(DTypeOf<T>::value), dtype_name(DTypeOf<Grad>::value));

  Numbers adamw = before;
  std::vector<Copy> adamw_copy(before.param.size());
  cpu::adamw_step(adamw.param.data(), adamw.first.data(), adamw.second.data(), grad.data(),
                  kHasCopy ? adamw_copy.data() : nullptr, n, scalars.data(), kDecay);
  Numbers sgd = before;
  std::vector<Copy> sgd_copy(before.param.size());
  cpu::sgd_step(sgd.param.data(), grad.data(), kHasCopy ? sgd_copy.data() : nullptr, n, scalars.data(), kDecay);

  const auto outputs = under_every_order(what, [&] {
    const OnDevice<float> p(before.param, shifts.state), m(before.first, shifts.state), v(before.second, shifts.state),
        sgd_p(before.param, shifts.state);
    const OnDevice<Grad> g(grad, shifts.grad);
    const OnDevice<Copy> copy(adamw_copy.size(), shifts.copy), other_copy(sgd_copy.size(), shifts.copy);
    const OnDevice<double> s(scalars);
    const Element element = element_of<Copy>(), grad_element = element_of<Grad>();
    cuda::adamw_step(p.get(), m.get(), v.get(), g.get(), grad_element, kHasCopy ? copy.get() : nullptr, element, n,
                     s.get(), kDecay, nullptr);
    cuda::sgd_step(sgd_p.get(), g.get(), grad_element, kHasCopy ? other_copy.get() : nullptr, element, n, s.get(),
                   kDecay, nullptr);
    return std::tuple(p.values(), m.values(), v.values(), sgd_p.values(), copy.values(), other_copy.values());
  });
  EXPECT_TRUE(same_bits(std::get<0>(outputs), adamw.param)) << what;
  EXPECT_TRUE(same_bits(std::get<1>(outputs), adamw.first)) << what;
  EXPECT_TRUE(same_bits(std::get<2>(outputs), adamw.second)) << what;
  EXPECT_TRUE(same_bits(std::get<3>(outputs), sgd.param)) << what;
  if (kHasCopy) {
    EXPECT_TRUE(same_bits(std::get<4>(outputs), adamw_copy)) << what;
    EXPECT_TRUE(same_bits(std::get<5>(outputs), sgd_copy)) << what;
  }
}

TEST(CudaUpdates, HaveTheBitsOfTheCpu) {
  for (const int64_t n : kSizes) {
    for (const Shifts& shifts : {Shifts{}, {1, 1, 1}, {.grad = 1}, {.copy = 1}}) {
      for_all_elements([&](auto copy) {
        compare_updates<decltype(copy), float>(n, shifts);
        compare_updates<decltype(copy), BFloat16>(n, shifts);
      });
    }
  }
}

TEST(CudaUpdates, TouchNothingWhenToldToSkip) {
  const Numbers before(100);
  const auto outputs = under_every_order("skip", [&] {
    const OnDevice<float> p(before.param), m(before.first), v(before.second), g(before.grad), sgd_p(before.param);
    const OnDevice<BFloat16> copy(std::vector<BFloat16>(before.param.size(), BFloat16{7}));
    const OnDevice<double> s(some_scalars(true));
    cuda::adamw_step(p.get(), m.get(), v.get(), g.get(), Element::kF32, copy.get(), Element::kBf16, 100, s.get(),
                     kDecay, nullptr);
    cuda::sgd_step(sgd_p.get(), g.get(), Element::kF32, copy.get(), Element::kBf16, 100, s.get(), kDecay, nullptr);
    return std::tuple(p.values(), m.values(), v.values(), sgd_p.values(), copy.values());
  });
  EXPECT_TRUE(same_bits(std::get<0>(outputs), before.param));
  EXPECT_TRUE(same_bits(std::get<1>(outputs), before.first));
  EXPECT_TRUE(same_bits(std::get<2>(outputs), before.second));
  EXPECT_TRUE(same_bits(std::get<3>(outputs), before.param));
  EXPECT_EQ(std::get<4>(outputs).back().bits, 7);
}

// finish_step on both devices, from results that say `was_finite`; returns what both left.
struct Finished {
  std::vector<double> results, scalars;
};
Finished finish(const std::vector<double>& totals, const std::vector<double>& squares, const StepSettings& settings,
                double was_finite = 1) {
  const auto num_squares = static_cast<int64_t>(squares.size());
  Finished expected{std::vector<double>(kNumStepResults, was_finite), std::vector<double>(kNumUpdateScalars)};
  cpu::finish_step(expected.results.data(), expected.scalars.data(), totals.data(), squares.data(), num_squares,
                   settings);
  const auto outputs = under_every_order("finish_step", [&] {
    const OnDevice<double> results(std::vector<double>(kNumStepResults, was_finite));
    const OnDevice<double> scalars(static_cast<size_t>(kNumUpdateScalars)), device_totals(totals),
        device_squares(squares);
    cuda::finish_step(results.get(), scalars.get(), device_totals.get(), device_squares.get(), num_squares, settings,
                      nullptr);
    return std::array{results.values(), scalars.values()};
  });
  const std::string what = fmt::format("{} squares, loss {}", num_squares, totals[0]);
  for (size_t i = 0; i < outputs[0].size(); ++i) {
    if (!std::isnan(expected.results[i])) {  // a NaN's sign and payload may differ
      EXPECT_EQ(outputs[0][i], expected.results[i]) << what << " result " << i;
    } else {
      EXPECT_TRUE(std::isnan(outputs[0][i])) << what << " result " << i;
    }
  }
  if (expected.scalars[kSkip] == 0) {
    EXPECT_TRUE(same_bits(outputs[1], expected.scalars)) << what;
  } else {
    EXPECT_EQ(outputs[1][kSkip], 1) << what;
  }
  return {outputs[0], outputs[1]};
}

TEST(CudaFinishStep, HasTheBitsOfTheCpu) {
  for (const int64_t n : {0, 1, 31, 33, 256, 257, 1000}) {
    for (const double clip : {0.0, 1.0, 1e6}) {
      for (const double targets : {64.0, 61.0}) {
        auto squares = random_values<double>(n, 1);
        for (double& v : squares) {
          v *= v;
        }
        StepSettings settings = some_settings();
        settings.clip_grad = clip;
        const Finished finished = finish({180.3, targets}, squares, settings);
        EXPECT_EQ(finished.scalars[kSkip], 0);
        EXPECT_EQ(finished.results[kStepFinite], 1);
      }
    }
  }
}

TEST(CudaFinishStep, SaysWhetherAllWasFiniteAndRemembersWhenItSkips) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  StepSettings settings = some_settings();
  for (const bool skip : {true, false}) {
    settings.skip_not_finite = skip;
    for (const double bad : {kNan, kInfinity}) {
      for (const Finished& finished : {finish({bad, 64}, {1, 2}, settings), finish({1, 64}, {1, bad}, settings)}) {
        EXPECT_EQ(finished.scalars[kSkip], skip ? 1 : 0);
        EXPECT_EQ(finished.results[kStepFinite], 0);
      }
    }
    const Finished later = finish({1, 64}, {1, 2}, settings, 0);
    EXPECT_EQ(later.scalars[kSkip], skip ? 1 : 0);
    EXPECT_EQ(later.results[kStepFinite], skip ? 0 : 1);
    EXPECT_EQ(finish({0, 0}, {1, 2}, settings).scalars[kSkip], 1) << "no targets";
  }
}

}  // namespace
}  // namespace ashlar::kernels
