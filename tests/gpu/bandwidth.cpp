// Kernels that only move and combine numbers, as a share of a copy within the device. Bytes are what an algorithm must
// read and write once.
#include <fmt/format.h>

#include "kernels/accumulate.h"
#include "kernels/activation.h"
#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/layernorm.h"
#include "kernels/matmul.h"
#include "kernels/optimizer.h"
#include "kernels/reduce.h"
#include "kernels/update_scalars.h"
#include "tests/gpu/steps.h"

namespace ashlar {
namespace {

constexpr DType kT = DType::kBF16;
constexpr int64_t kTBytes = 2;

class Rows {
 public:
  Rows(Bench& bench, StepReport& report) : bench_(bench), report_(report), copy_rate_(bench.copy_rate()) {
    report.begin("share of a copy within the device", {"kernel", "ms", "GB/s", "copy GB/s", "ratio"});
  }
  void add(const std::string& name, int64_t bytes, const std::function<void()>& run) {
    const double seconds = bench_.seconds(run);
    const double rate = static_cast<double>(bytes) / seconds;
    report_.add({name, Cell(seconds * 1e3, 3), rate * 1e-9, copy_rate_ * 1e-9, Cell(rate / copy_rate_, 2)});
  }

 private:
  Bench& bench_;
  StepReport& report_;
  double copy_rate_;
};

void norms(Bench& bench, Rows& rows, int64_t r, int64_t c) {
  const Tensor x = bench.random(kT, {r, c}), b = bench.random(kT, {r, c}), dy = bench.random(kT, {r, c});
  const Tensor y = bench.empty(kT, {r, c}), sum = bench.empty(kT, {r, c});
  const Tensor gamma = bench.random(kT, {c}), beta = bench.random(kT, {c}), bias = bench.random(kT, {c});
  const Tensor mean = bench.empty(DType::kF32, {r}), rstd = bench.empty(DType::kF32, {r});
  const Tensor dgamma = bench.empty(DType::kF32, {c}), dbeta = bench.empty(DType::kF32, {c});
  Stream& stream = bench.stream();
  const std::string shape = fmt::format(" [{},{}]", r, c);
  rows.add("layernorm forward" + shape, 2 * r * c * kTBytes,
           [&] { kernels::layernorm_forward(y, mean, rstd, x, gamma, beta, 1e-5, stream); });
  rows.add("residual + layernorm forward" + shape, 4 * r * c * kTBytes,
           [&] { kernels::residual_layernorm_forward(y, sum, mean, rstd, x, b, bias, gamma, beta, 1e-5, stream); });
  rows.add("layernorm backward" + shape, 4 * r * c * kTBytes,
           [&] { kernels::layernorm_backward(sum, dgamma, dbeta, dy, b, x, gamma, mean, rstd, stream); });
}

void elements(Bench& bench, Rows& rows, int64_t r, int64_t c) {
  const Tensor x = bench.random(kT, {r, c}), dy = bench.random(kT, {r, c}), y = bench.empty(kT, {r, c});
  const Tensor wide = bench.empty(DType::kF32, {r, c}), db = bench.empty(DType::kF32, {c});
  Stream& stream = bench.stream();
  const int64_t n = r * c;
  const std::string shape = fmt::format(" [{},{}]", r, c);
  rows.add("GELU forward" + shape, 2 * n * kTBytes,
           [&] { kernels::activation_forward(y, x, kernels::Activation::kGeluTanh, stream); });
  rows.add("GELU backward" + shape, 3 * n * kTBytes,
           [&] { kernels::activation_backward(y, dy, x, kernels::Activation::kGeluTanh, stream); });
  rows.add("accumulate bf16" + shape, 3 * n * kTBytes,
           [&] { kernels::accumulate(y, x, kernels::Write::kAdd, stream); });
  rows.add("cast bf16 to fp32" + shape, n * (kTBytes + 4), [&] { kernels::cast(wide, x, stream); });
  rows.add("bias gradient" + shape, n * kTBytes,
           [&] { kernels::bias_backward(db, dy, kernels::Write::kOverwrite, stream); });
}

void loss(Bench& bench, Rows& rows, int64_t n, int64_t v) {
  const Tensor logits = bench.random(kT, {n, v});
  const Tensor stats = bench.empty(DType::kF32, {n, 3}), losses = bench.empty(DType::kF32, {n});
  const Tensor mask = bench.filled(DType::kF32, {n}, 1), targets = bench.integers(n, v - 3);
  Stream& stream = bench.stream();
  const std::string shape = fmt::format(" [{},{}]", n, v);
  rows.add("cross-entropy stats" + shape, n * v * kTBytes,
           [&] { kernels::cross_entropy_stats(stats, logits, targets, 0, v - 3, stream); });
  rows.add("cross-entropy finish, gradient" + shape, 2 * n * v * kTBytes, [&] {
    kernels::cross_entropy_finish(losses, logits, stats.view().reshaped({1, n, 3}), targets, mask, 0, v - 3, 1.0, true,
                                  stream);
  });
}

void tables(Bench& bench, Rows& rows, int64_t n, int64_t c, int64_t v) {
  const Tensor table = bench.random(kT, {v, c}), dy = bench.random(kT, {n, c}), y = bench.empty(kT, {n, c});
  const Tensor dtable = bench.filled(DType::kF32, {v, c}, 0);
  const Tensor tokens = bench.integers(n, v), order = bench.order_of(tokens);
  Stream& stream = bench.stream();
  const std::string shape = fmt::format(" [{},{}] of {}", n, c, v);
  rows.add("embedding forward" + shape, 2 * n * c * kTBytes,
           [&] { kernels::embedding_forward(y, tokens, table, 0, v, stream); });
  rows.add("embedding backward" + shape, n * c * (kTBytes + 8),
           [&] { kernels::embedding_backward(dtable, dy, tokens, order, 0, v, stream); });
}

void optimizer(Bench& bench, Rows& rows, int64_t n) {
  const Tensor param = bench.random(DType::kF32, {n}), grad = bench.random(DType::kF32, {n}, 1e-3);
  const Tensor first = bench.filled(DType::kF32, {n}, 0), second = bench.filled(DType::kF32, {n}, 0);
  const Tensor copy = bench.empty(kT, {n});
  const Tensor blocks = bench.empty(DType::kF64, {(n + kernels::kNormBlock - 1) / kernels::kNormBlock});
  const Tensor scalars = bench.empty(DType::kF64, {kernels::kNumUpdateScalars});
  const Tensor results = bench.filled(DType::kF64, {kernels::kNumStepResults}, 1);
  const Tensor totals = bench.filled(DType::kF64, {2}, 1);
  Stream& stream = bench.stream();
  const std::string size = fmt::format(" [{}]", n);
  rows.add("sum of squares" + size, 4 * n, [&] { kernels::sum_of_squares(blocks, grad, stream); });
  kernels::StepSettings settings{};
  settings.nominal_targets = 1;
  settings.rate = 1e-3;
  settings.beta1 = 0.9;
  settings.beta2 = 0.95;
  settings.epsilon = 1e-8;
  settings.step = 1;
  kernels::finish_step(results, scalars, totals, blocks, settings, stream);
  rows.add("AdamW, fp32 with a bf16 copy" + size, n * (7 * 4 + kTBytes),
           [&] { kernels::adamw_step(param, first, second, grad, copy, scalars, 0.1, stream); });
}

}  // namespace

void check_bandwidth(Bench& bench, StepReport& report) {
  Rows rows(bench, report);
  if (bench.tiny()) {
    norms(bench, rows, 4, 64);
    elements(bench, rows, 4, 64);
    loss(bench, rows, 4, 64);
    tables(bench, rows, 8, 64, 16);
    optimizer(bench, rows, 512);
    return;
  }
  norms(bench, rows, 32768, 768);
  norms(bench, rows, 16384, 2048);
  norms(bench, rows, 8192, 4096);
  elements(bench, rows, 32768, 3072);
  loss(bench, rows, 8192, 50304);
  loss(bench, rows, 4096, 128256);
  tables(bench, rows, 32768, 768, 50304);
  optimizer(bench, rows, 124 * 1000 * 1000);
}

}  // namespace ashlar
