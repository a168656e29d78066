#include "kernels/optimizer.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/cpu/loops.h"
#include "kernels/update_scalars.h"
#include "tests/kernels/half_support.h"

namespace ashlar::kernels {
namespace {

const StepSettings kSettings{.rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .step = 3};
constexpr double kDecay = 0.1;
constexpr double kTestFactor = 0.37;

std::vector<double> scalars_of(const StepSettings& settings, double factor) {
  std::vector<double> scalars(kNumUpdateScalars);
  set_host_scalars(scalars.data(), settings);
  scalars[kFactor] = factor;
  return scalars;
}

template <typename T>
struct State {
  explicit State(int64_t n)
      : param(random_values<T>(n, 1)),
        first(random_values<T>(n, 2, 0.1)),
        second(random_values<T>(n, 3, 0.1)),
        grad(random_values<T>(n, 4)) {
    for (T& value : second) {
      value *= value;
    }
  }
  // Elements [begin, end) only.
  void step(int64_t begin, int64_t end, Stream& stream) {
    adamw_step(view(param).slice(begin, end), view(first).slice(begin, end), view(second).slice(begin, end),
               view(std::as_const(grad)).slice(begin, end), {}, view(scalars), kDecay, stream);
  }
  int64_t size() const { return static_cast<int64_t>(param.size()); }

  std::vector<T> param, first, second, grad;
  std::vector<double> scalars = scalars_of(kSettings, kTestFactor);
};

// The formula of the header, term by term, in double.
template <typename T>
void compare_with_formula(double tolerance) {
  for (const int64_t n : {int64_t{1}, int64_t{31}, int64_t{33}, cpu::kBlock + 1}) {
    State<T> state(n);
    const State<T> before = state;
    on_queued_stream([&](Stream& stream) { state.step(0, n, stream); });
    std::vector<double> param, first, second;
    for (size_t i = 0; i < before.param.size(); ++i) {
      const double g = kTestFactor * static_cast<double>(before.grad[i]);
      const double m = kSettings.beta1 * static_cast<double>(before.first[i]) + (1 - kSettings.beta1) * g;
      const double v = kSettings.beta2 * static_cast<double>(before.second[i]) + (1 - kSettings.beta2) * g * g;
      const double m_hat = m / (1 - std::pow(kSettings.beta1, 3));
      const double v_hat = v / (1 - std::pow(kSettings.beta2, 3));
      first.push_back(m);
      second.push_back(v);
      param.push_back(static_cast<double>(before.param[i]) * (1 - kSettings.rate * kDecay) -
                      kSettings.rate * m_hat / (std::sqrt(v_hat) + kSettings.epsilon));
    }
    expect_close(state.param, param, tolerance, "param");
    expect_close(state.first, first, tolerance, "first moment");
    expect_close(state.second, second, tolerance, "second moment");
  }
}

TEST(AdamW, EqualsTheFormulaInFp32) {
  compare_with_formula<float>(3e-7);
}
TEST(AdamW, EqualsTheFormulaInFp64) {
  compare_with_formula<double>(1e-15);
}

TEST(AdamW, BitsDoNotDependOnCutsOrThreads) {
  const int64_t n = 2 * cpu::kBlock + 333;
  State<float> whole(n);
  State<float> cut = whole;
  with_threads(1, [&](Stream& stream) { whole.step(0, n, stream); });
  with_threads(3, [&](Stream& stream) {
    int64_t begin = 0;
    for (int64_t length = 1; begin < n; length = length * 3 + 2) {  // 1, 5, 17, 53, ... : no multiple of a vector
      const int64_t end = std::min(n, begin + length);
      cut.step(begin, end, stream);
      begin = end;
    }
  });
  EXPECT_TRUE(same_bits(whole.param, cut.param));
  EXPECT_TRUE(same_bits(whole.first, cut.first));
  EXPECT_TRUE(same_bits(whole.second, cut.second));
}

TEST(AdamW, ElementsOnTheirOwnGiveTheSameBits) {
  State<float> whole(100);
  State<float> single = whole;
  with_threads(1, [&](Stream& stream) {
    whole.step(0, 100, stream);
    for (int64_t i = 0; i < 100; ++i) {
      single.step(i, i + 1, stream);
    }
  });
  EXPECT_TRUE(same_bits(whole.param, single.param));
}

TEST(Sgd, EqualsTheFormulaAndBitsDoNotDependOnCuts) {
  const int64_t n = cpu::kBlock + 77;
  const auto grad = random_values<float>(n, 1);
  const auto before = random_values<float>(n, 2);
  auto whole = before;
  auto cut = before;
  const auto scalars = scalars_of({.rate = 0.1}, 0.5);
  with_threads(3, [&](Stream& stream) {
    sgd_step(view(whole), view(grad), {}, view(scalars), 0.01, stream);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 13}, {13, 998}, {998, n}}) {
      sgd_step(view(cut).slice(begin, end), view(grad).slice(begin, end), {}, view(scalars), 0.01, stream);
    }
  });
  std::vector<double> expected;
  for (size_t i = 0; i < before.size(); ++i) {
    expected.push_back(static_cast<double>(before[i]) * (1 - 0.1 * 0.01) - 0.1 * 0.5 * static_cast<double>(grad[i]));
  }
  expect_close(whole, expected, 2e-7, "param");
  EXPECT_TRUE(same_bits(whole, cut));
}

// A bf16 gradient is a number of fp32, and updates as that one does: no other rounding comes in.
template <typename T>
void compare_gradients_in_bf16() {
  for (const int64_t n : {int64_t{1}, int64_t{31}, int64_t{33}, cpu::kBlock + 1}) {
    State<T> wide(n);
    const std::vector<BFloat16> grad = rounded<BFloat16>(widened(wide.grad));
    wide.grad = rounded<T>(widened(grad));
    State<T> narrow = wide, wide_sgd = wide, narrow_sgd = wide;
    on_queued_stream([&](Stream& stream) {
      wide.step(0, n, stream);
      adamw_step(view(narrow.param), view(narrow.first), view(narrow.second), view(grad), {}, view(narrow.scalars),
                 kDecay, stream);
      sgd_step(view(wide_sgd.param), view(wide.grad), {}, view(wide.scalars), kDecay, stream);
      sgd_step(view(narrow_sgd.param), view(grad), {}, view(wide.scalars), kDecay, stream);
    });
    EXPECT_TRUE(same_bits(narrow.param, wide.param)) << n;
    EXPECT_TRUE(same_bits(narrow.first, wide.first)) << n;
    EXPECT_TRUE(same_bits(narrow.second, wide.second)) << n;
    EXPECT_TRUE(same_bits(narrow_sgd.param, wide_sgd.param)) << n;
  }
}

TEST(GradientsInBf16, UpdateAsTheSameNumbersInWiderTypes) {
  compare_gradients_in_bf16<float>();
  compare_gradients_in_bf16<double>();
}

TEST(GradientsInBf16, OtherTypesAndSizesAreRefused) {
  State<float> state(33);
  const std::vector<Float16> halves(33);
  const std::vector<double> doubles(33);
  const std::vector<BFloat16> few(32);
  with_threads(1, [&](Stream& stream) {
    for (const ConstTensorView grad : {view(halves), view(doubles), view(few)}) {
      EXPECT_THROW(adamw_step(view(state.param), view(state.first), view(state.second), grad, {}, view(state.scalars),
                              kDecay, stream),
                   Error);
      EXPECT_THROW(sgd_step(view(state.param), grad, {}, view(state.scalars), kDecay, stream), Error);
    }
  });
}

// Linear(2,3) - sigmoid - Linear(3,1) - sigmoid on three inputs, loss = sum of outputs; parameters in the order of the
// reference: 0.weight [3,2], 0.bias [3], 2.weight [1,3], 2.bias [1].
constexpr size_t kFirstBias = 6, kSecondWeight = 9, kSecondBias = 12, kNumParams = 13;

std::vector<double> gradient_of(const std::vector<double>& p, const std::vector<std::vector<double>>& inputs) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  std::vector<double> grad(kNumParams);
  for (const auto& x : inputs) {
    double hidden[3];
    double out = p[kSecondBias];
    for (size_t h = 0; h < 3; ++h) {
      hidden[h] = sigmoid(p[2 * h] * x[0] + p[2 * h + 1] * x[1] + p[kFirstBias + h]);
      out += p[kSecondWeight + h] * hidden[h];
    }
    out = sigmoid(out);
    const double dout = out * (1 - out);
    grad[kSecondBias] += dout;
    for (size_t h = 0; h < 3; ++h) {
      grad[kSecondWeight + h] += dout * hidden[h];
      const double dhidden = dout * p[kSecondWeight + h] * hidden[h] * (1 - hidden[h]);
      grad[kFirstBias + h] += dhidden;
      grad[2 * h] += dhidden * x[0];
      grad[2 * h + 1] += dhidden * x[1];
    }
  }
  return grad;
}

std::vector<double> flat(const nlohmann::json& tensors) {
  std::vector<double> values;
  for (const auto& tensor : tensors) {
    for (const auto& value : tensor) {
      values.push_back(value.get<double>());
    }
  }
  return values;
}

TEST(AdamW, FollowsPyTorchFor1001Steps) {
  std::ifstream file(ASHLAR_SOURCE_DIR "/../shared/data/optim/adamw_pytorch_baseline.json");
  if (!file) {
    GTEST_SKIP() << "no shared data";
  }
  const nlohmann::json reference = nlohmann::json::parse(file);
  const auto inputs = reference["input"].get<std::vector<std::vector<double>>>();
  const nlohmann::json& init = reference["init"];
  const int iterations = reference["iterations"];
  const int sample_every = reference["sample_every"];
  int num_compared = 0;
  // Without decay only the first and the last sample are kept.
  for (const auto& [key, decay] : {std::pair{"AdamW_wd_0.01", 0.01}, std::pair{"AdamW_wd_0_first_and_last", 0.0}}) {
    ASSERT_TRUE(reference.contains(key));
    const nlohmann::json& samples = reference[key];
    std::vector<double> param = flat({init["0.weight"], init["0.bias"], init["2.weight"], init["2.bias"]});
    std::vector<double> first(kNumParams), second(kNumParams);
    StepSettings settings{.rate = reference["hyper"]["lr"]};
    size_t sample = 0;
    with_threads(1, [&](Stream& stream) {
      for (int i = 0; i < iterations; ++i) {
        const std::vector<double> grad = gradient_of(param, inputs);
        settings.step = i + 1;
        const auto scalars = scalars_of(settings, 1);
        adamw_step(view(param), view(first), view(second), view(grad), {}, view(scalars), decay, stream);
        const bool sampled = samples.size() == 2 ? i == 0 || i == iterations - 1 : i % sample_every == 0;
        if (!sampled) {
          continue;
        }
        const std::vector<double> expected = flat(samples[sample++]);
        ASSERT_EQ(expected.size(), kNumParams);
        for (size_t k = 0; k < kNumParams; ++k) {
          ASSERT_LE(std::abs(param[k] - expected[k]), 5e-4 + 1e-3 * std::abs(expected[k]))
              << key << " after step " << i + 1 << " parameter " << k;
        }
        ++num_compared;
      }
    });
  }
  EXPECT_EQ(num_compared, 13);
}

}  // namespace
}  // namespace ashlar::kernels
