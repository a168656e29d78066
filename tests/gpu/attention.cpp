// Attention, forward and backward, beside the rate of a large matrix product on the same GPU.
#include "kernels/attention.h"

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "tests/gpu/steps.h"

namespace ashlar {
namespace {

struct Shape5 {
  int64_t batch, length, heads, head_dim;
};
constexpr Shape5 kShapes[] = {{64, 1024, 12, 64}, {8, 2048, 16, 128}, {1, 8192, 32, 128}};
constexpr Shape5 kTinyShapes[] = {{1, 40, 2, 64}};

}  // namespace

void check_attention(Bench& bench, StepReport& report) {
  const double limit = bench.matmul_rate();
  report.begin(
      "causal attention, bf16; FLOPs of the lower triangle, backward as 5 products",
      {"[B,T,H,D]", "forward TFLOP/s", "backward TFLOP/s", "8192^3 TFLOP/s", "forward / limit", "backward / limit"});
  for (const Shape5& s : bench.tiny() ? std::span<const Shape5>(kTinyShapes) : std::span<const Shape5>(kShapes)) {
    for (const double probability : {0.0, 0.1}) {
      const Tensor qkv = bench.random(DType::kBF16, {s.batch, s.length, 3, s.heads, s.head_dim});
      const Tensor dout = bench.random(DType::kBF16, {s.batch, s.length, s.heads, s.head_dim});
      const Tensor out = bench.empty(DType::kBF16, dout.shape()), dqkv = bench.empty(DType::kBF16, qkv.shape());
      const Tensor lse = bench.empty(DType::kF32, {s.batch, s.heads, s.length});
      const auto workspace_bytes =
          static_cast<int64_t>(kernels::attention_backward_workspace_bytes(qkv.shape(), DType::kBF16));
      const Tensor workspace = bench.empty(DType::kU8, {workspace_bytes});
      const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
      const kernels::Dropout dropout{.probability = probability, .key = {1, 2}};
      const double forward =
          bench.seconds([&] { kernels::attention_forward(out, lse, qkv, scale, dropout, bench.stream()); });
      const double backward = bench.seconds(
          [&] { kernels::attention_backward(dqkv, dout, qkv, out, lse, scale, dropout, workspace, bench.stream()); });
      for (const float value : bench.values(dqkv, 1 << 16)) {
        if (!std::isfinite(value)) {
          report.fail("the gradient is not finite");
          break;
        }
      }
      const double flops = 2.0 * static_cast<double>(s.batch * s.heads) * static_cast<double>(s.length) *
                           static_cast<double>(s.length) * static_cast<double>(s.head_dim);
      report.add({fmt::format("[{},{},{},{}]{}", s.batch, s.length, s.heads, s.head_dim,
                              probability > 0 ? " dropout 0.1" : ""),
                  flops / forward * 1e-12, 2.5 * flops / backward * 1e-12, limit * 1e-12,
                  Cell(flops / forward / limit, 2), Cell(2.5 * flops / backward / limit, 2)});
    }
  }
}

}  // namespace ashlar
