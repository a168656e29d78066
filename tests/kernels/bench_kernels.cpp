// Rates of the matrix products and of attention at the shapes of GPT-2 124M, as a share of what the same process
// reaches in sgemm 1024 x 1024 x 1024. Rates are per second of processor time: run with OMP_NUM_THREADS=1.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ashlar::kernels {
namespace {

// Processor time of this process, so that neighbours on the machine do not count.
double seconds_now() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// The best of the runs that fit into a quarter of a second, three at least.
double best_seconds(const std::function<void()>& run) {
  run();
  double best = 1e30;
  const double start = seconds_now();
  for (int i = 0; i < 3 || seconds_now() - start < 0.25; ++i) {
    const double begin = seconds_now();
    run();
    best = std::min(best, seconds_now() - begin);
  }
  return best;
}

class Bench {
 public:
  Bench() : stream_(device_.create_stream()) {
    for (Tensor& x : square_) {
      x = random({1024, 1024});
    }
    measure_reference();
    fmt::print("sgemm 1024 x 1024 x 1024: {:.1f} GFLOP/s\n", reference_ / 1e9);
  }

  Tensor random(Shape shape) {
    Tensor x(device_, DType::kF32, shape, "bench");
    std::mt19937 generator(7);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    std::generate(x.as<float>(), x.as<float>() + shape.num_elements(), [&] { return uniform(generator); });
    return x;
  }
  Stream& stream() { return *stream_; }
  CpuDevice& device() { return device_; }
  // GPT-2 124M at T = 64 costs 744 MFLOP a token; seconds of a step that ran at the reference rate throughout.
  double step_seconds(double tokens) const { return 744e6 * tokens / reference_; }

  // Returns the seconds.
  double line(const std::string& name, double flops, const std::function<void()>& run) {
    const double seconds = best_seconds(run);
    measure_reference();
    fmt::print("  {:<34} {:8.1f} us  {:6.1f} GFLOP/s  ratio {:.2f}\n", name, seconds * 1e6, flops / seconds / 1e9,
               flops / seconds / reference_);
    return seconds;
  }

 private:
  // Measured anew beside every line, because the clock of the core comes and goes; the best so far counts.
  void measure_reference() {
    const double seconds = best_seconds([&] {
      matmul(square_[0], square_[1], Transpose::kNo, square_[2], Transpose::kNo, Write::kOverwrite, *stream_);
    });
    reference_ = std::max(reference_, 2.0 * 1024 * 1024 * 1024 / seconds);
  }

  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  std::array<Tensor, 3> square_;
  double reference_ = 0;
};

void bench_linear(Bench& bench, int64_t rows, int64_t out, int64_t in, bool with_bias) {
  Tensor x = bench.random({rows, in}), w = bench.random({out, in}), y = bench.random({rows, out});
  Tensor dx = bench.random({rows, in}), dw = bench.random({out, in}), bias = bench.random({out});
  const double flops = 2.0 * static_cast<double>(rows * out * in);
  fmt::print("linear {} x {} x {}{}\n", rows, out, in, with_bias ? ", bias" : "");
  bench.line("forward", flops,
             [&] { linear_forward(y, x, w, with_bias ? ConstTensorView(bias) : ConstTensorView{}, bench.stream()); });
  bench.line("backward_input", flops, [&] { linear_backward_input(dx, y, w, bench.stream()); });
  bench.line("backward_weight, added", flops, [&] { linear_backward_weight(dw, y, x, Write::kAdd, bench.stream()); });
  if (with_bias) {
    bench.line("bias_backward (1 FLOP an element)", static_cast<double>(rows * out),
               [&] { bias_backward(bias, y, Write::kAdd, bench.stream()); });
  }
}

// FLOPs as a causal model counts them: half of the square; backward has five products where forward has two.
void bench_attention(Bench& bench, int64_t batch, int64_t sequence, int64_t heads, int64_t dim) {
  Tensor qkv = bench.random({batch, sequence, 3, heads, dim}), dqkv = bench.random({batch, sequence, 3, heads, dim});
  Tensor out = bench.random({batch, sequence, heads, dim}), dout = bench.random({batch, sequence, heads, dim});
  Tensor lse = bench.random({batch, heads, sequence});
  Tensor workspace(bench.device(), DType::kU8,
                   {static_cast<int64_t>(attention_backward_workspace_bytes(qkv.shape(), DType::kF32))}, "bench");
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  const double flops = 2.0 * static_cast<double>(batch * sequence * sequence * dim * heads);
  fmt::print("attention B {} T {} H {} D {}\n", batch, sequence, heads, dim);
  const double forward =
      bench.line("forward", flops, [&] { attention_forward(out, lse, qkv, scale, Dropout{}, bench.stream()); });
  const double backward = bench.line("backward", 2.5 * flops, [&] {
    attention_backward(dqkv, dout, qkv, out, lse, scale, Dropout{}, workspace, bench.stream());
  });
  fmt::print("  both: {:.1f} GFLOP/s; 12 such layers take {:.1f} % of a step at the sgemm rate\n",
             3.5 * flops / (forward + backward) / 1e9,
             100.0 * 12 * (forward + backward) / bench.step_seconds(static_cast<double>(batch * sequence)));
}

}  // namespace
}  // namespace ashlar::kernels

int main() {
  using namespace ashlar::kernels;
  Bench bench;
  for (const int64_t rows : {256, 1024}) {
    bench_linear(bench, rows, 2304, 768, true);
    bench_linear(bench, rows, 768, 768, true);
    bench_linear(bench, rows, 3072, 768, true);
    bench_linear(bench, rows, 768, 3072, true);
    bench_linear(bench, rows, 50304, 768, false);
  }
  bench_attention(bench, 4, 64, 12, 64);
  bench_attention(bench, 1, 256, 12, 64);
  bench_attention(bench, 1, 1024, 12, 64);
  bench_attention(bench, 1, 1024, 6, 128);
  return 0;
}
