// Bytes per second of the kernels that only move and combine numbers, beside memcpy in the same process on as many
// threads. Every figure is the best of several runs at GPT-2 124M sizes. Bytes are what the algorithm must read and
// write once.
#include <fmt/format.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/accumulate.h"
#include "kernels/activation.h"
#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/layernorm.h"
#include "kernels/optimizer.h"
#include "kernels/reduce.h"
#include "kernels/update_scalars.h"
#include "runtime/base/rng.h"
#include "runtime/device/cpu/cpu_device.h"

using namespace ashlar;
using namespace ashlar::kernels;

namespace {

double seconds_of(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int num_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

class Bench {
 public:
  Bench() : stream_(device_.create_stream()) {}

  Tensor floats(Shape shape) {
    Tensor tensor(device_, DType::kF32, shape, "bench");
    const PhiloxStream random(1, RngPurpose::kTest, 0);
    for (int64_t i = 0; i < shape.num_elements(); ++i) {
      tensor.as<float>()[i] = static_cast<float>(random.uniform(static_cast<uint64_t>(i % 65536))) * 4.0f - 2.0f;
    }
    return tensor;
  }
  Tensor tokens(int64_t n, int32_t bound) {
    Tensor tensor(device_, DType::kI32, {n}, "bench");
    const PhiloxStream random(2, RngPurpose::kTest, 0);
    for (int64_t i = 0; i < n; ++i) {
      tensor.as<int32_t>()[i] =
          static_cast<int32_t>(random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(bound)));
    }
    return tensor;
  }

  // `bytes` that `run` moves, beside the rate of a memcpy that moves as many (half read, half written), or half a
  // gigabyte where that is less: far beyond every cache.
  void report(const char* name, int64_t bytes, const std::function<void()>& run, int repeats = 20) {
    const int64_t copied = std::min<int64_t>(bytes, 512 << 20) / 8;
    Tensor from = floats({copied});
    Tensor to = floats({copied});
    const auto copy = [&] {
      // One piece a thread: memcpy goes past the caches only from some megabytes on, and is much slower before.
      const int64_t total = to.view().num_elements(), piece = (total + num_threads() - 1) / num_threads();
#pragma omp parallel for schedule(static)
      for (int64_t begin = 0; begin < total; begin += piece) {
        std::memcpy(to.as<float>() + begin, from.as<float>() + begin,
                    static_cast<size_t>(std::min(piece, total - begin)) * sizeof(float));
      }
    };
    double copy_seconds = std::numeric_limits<double>::infinity();
    double run_seconds = copy_seconds;
    for (int i = 0; i < repeats; ++i) {  // in turn, so that a busy machine slows both; each twice, for its caches
      seconds_of(copy);
      copy_seconds = std::min(copy_seconds, seconds_of(copy));
      seconds_of(run);
      run_seconds = std::min(run_seconds, seconds_of(run));
    }
    const double rate = static_cast<double>(bytes) / run_seconds * 1e-9;
    const double copy_rate = static_cast<double>(copied * 8) / copy_seconds * 1e-9;
    fmt::print("{:<24} {:>9.3f} ms {:>8.2f} GB/s   memcpy {:>8.2f} GB/s   ratio: {:.2f}\n", name,
               static_cast<double>(bytes) / rate * 1e-6, rate, copy_rate, rate / copy_rate);
  }
  Stream& stream() {
    return *stream_;
  }
  CpuDevice& device() {
    return device_;
  }

 private:
  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
};

void bench_layernorm(Bench& bench, int64_t rows, int64_t columns) {
  const int64_t bytes = rows * columns * 4;
  Tensor x = bench.floats({rows, columns});
  Tensor dy = bench.floats({rows, columns});
  Tensor y = bench.floats({rows, columns});
  Tensor gamma = bench.floats({columns});
  Tensor beta = bench.floats({columns});
  Tensor mean = bench.floats({rows});
  Tensor rstd = bench.floats({rows});
  bench.report("layernorm_forward", 2 * bytes,
               [&] { layernorm_forward(y, mean, rstd, x, gamma, beta, 1e-5, bench.stream()); });
  Tensor dgamma = bench.floats({columns});
  Tensor dbeta = bench.floats({columns});
  bench.report("layernorm_backward", 4 * bytes,
               [&] { layernorm_backward(y, dgamma, dbeta, dy, y, x, gamma, mean, rstd, bench.stream()); });
  bench.report("add_bias_residual", 3 * bytes, [&] { add_bias_residual(y, x, dy, beta, bench.stream()); });
}

void bench_activation(Bench& bench, int64_t rows, int64_t columns) {
  const int64_t bytes = rows * columns * 4;
  Tensor x = bench.floats({rows, columns});
  Tensor y = bench.floats({rows, columns});
  for (const auto& [name, form] : {std::pair{"tanh", Activation::kGeluTanh}, std::pair{"erf", Activation::kGeluErf}}) {
    const Activation activation = form;
    bench.report(fmt::format("gelu_{}_forward", name).c_str(), 2 * bytes,
                 [&] { activation_forward(y, x, activation, bench.stream()); });
    bench.report(fmt::format("gelu_{}_backward", name).c_str(), 3 * bytes,
                 [&] { activation_backward(y, y, x, activation, bench.stream()); });
  }
}

void bench_vocabulary(Bench& bench, int64_t rows, int64_t vocab, int64_t columns) {
  const int64_t bytes = rows * vocab * 4;
  Tensor logits = bench.floats({rows, vocab});
  Tensor stats = bench.floats({1, rows, 3});
  Tensor losses = bench.floats({rows});
  Tensor mask = bench.floats({rows});
  std::fill_n(mask.as<float>(), rows, 1.0f);
  Tensor targets = bench.tokens(rows, static_cast<int32_t>(vocab - 47));
  bench.report("cross_entropy_stats", bytes,
               [&] { cross_entropy_stats(stats, logits, targets, 0, vocab - 47, bench.stream()); });
  bench.report("cross_entropy_finish", 2 * bytes, [&] {
    cross_entropy_finish(losses, logits, stats, targets, mask, 0, vocab - 47, 1.0, true, bench.stream());
  });
  Tensor table = bench.floats({vocab, columns});
  Tensor y = bench.floats({1, rows, columns});
  bench.report("embedding_forward", 2 * rows * columns * 4,
               [&] { embedding_forward(y, targets, table, 0, vocab - 47, bench.stream()); });
  bench.report("embedding_backward", 3 * rows * columns * 4,
               [&] { embedding_backward(table, y, targets, {}, 0, vocab - 47, bench.stream()); });
  bench.report("position_forward", 3 * rows * columns * 4, [&] {
    position_forward(y, table.view().slice(0, rows), {0, rows}, bench.stream());
  });
  bench.report("position_backward", 2 * rows * columns * 4, [&] {
    position_backward(table.view().slice(0, rows), y, {0, rows}, Write::kOverwrite, bench.stream());
  });
}

// The update and what stands around it: bytes are those that must pass by once, 16 read and 12 written for each fp32
// parameter, its moments and gradient, 2 more for a copy in 16 bits, 2 less for a gradient in bf16.
void bench_optimizer(Bench& bench, int64_t n) {
  Tensor param = bench.floats({n});
  Tensor grad = bench.floats({n});
  Tensor first = bench.floats({n});
  Tensor second(bench.device(), DType::kF32, {n}, "bench");
  std::fill_n(second.as<float>(), n, 1e-4f);
  Tensor copy(bench.device(), DType::kBF16, {n}, "bench");
  Tensor narrow_grad(bench.device(), DType::kBF16, {n}, "bench");
  cast(narrow_grad, grad, bench.stream());
  Tensor scalars(bench.device(), DType::kF64, {kNumUpdateScalars}, "bench");
  set_host_scalars(scalars.as<double>(), {.rate = 1e-4, .step = 10});
  scalars.as<double>()[kFactor] = 0.5;
  scalars.as<double>()[kSkip] = 0;
  Tensor blocks(bench.device(), DType::kF64, {(n + kNormBlock - 1) / kNormBlock}, "bench");
  const auto report = [&](const char* name, int64_t bytes_per_element, const std::function<void()>& run) {
    bench.report(name, n * bytes_per_element, run, 5);
  };
  const auto adamw = [&](ConstTensorView gradient, TensorView rounded) {
    adamw_step(param, first, second, gradient, rounded, scalars, 0.1, bench.stream());
  };
  report("adamw_step", 28, [&] { adamw(grad, {}); });
  report("adamw_step, bf16 copy", 30, [&] { adamw(grad, copy); });
  report("adamw_step, bf16 both", 28, [&] { adamw(narrow_grad, copy); });
  report("sgd_step", 12, [&] { sgd_step(param, grad, {}, scalars, 0, bench.stream()); });
  report("accumulate", 12, [&] { accumulate(param, grad, Write::kAdd, bench.stream()); });
  report("accumulate bf16 in fp32", 10, [&] { accumulate(param, narrow_grad, Write::kAdd, bench.stream()); });
  report("accumulate bf16 in bf16", 6, [&] { accumulate(copy, narrow_grad, Write::kAdd, bench.stream()); });
  report("sum_of_squares", 4, [&] { sum_of_squares(blocks, grad, bench.stream()); });
  report("sum_of_squares of bf16", 2, [&] { sum_of_squares(blocks, narrow_grad, bench.stream()); });
}

}  // namespace

// Names of groups to run (rows, activations, vocabulary, optimizer); all of them without arguments.
int main(int argc, char** argv) {
  Bench bench;
  const auto wanted = [&](std::string_view name) {
    return argc == 1 || std::find(argv + 1, argv + argc, name) != argv + argc;
  };
  if (wanted("rows")) {
    bench_layernorm(bench, 256, 768);
  }
  if (wanted("activations")) {
    bench_activation(bench, 256, 3072);
  }
  if (wanted("vocabulary")) {
    bench_vocabulary(bench, 256, 50304, 768);
  }
  if (wanted("optimizer")) {
    bench_optimizer(bench, 124'000'000);
  }
}
