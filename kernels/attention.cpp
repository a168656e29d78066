#include "kernels/attention.h"

#include "kernels/cpu/attention.h"
#include "kernels/cuda/attention.h"
#include "kernels/dispatch.h"
#include "kernels/stat_dtype.h"

namespace ashlar::kernels {
namespace {

void check(std::string_view op, std::string_view name, const ConstTensorView& x, Shape shape, DType dtype) {
  DCHECK(x.shape == shape && x.dtype == dtype, "{}: {} is {} {}, expected {} {}", op, name, dtype_name(x.dtype),
         x.shape.text(), dtype_name(dtype), shape.text());
}

cpu::AttentionSizes sizes_of(std::string_view op, const Shape& qkv, double scale, const Dropout& dropout) {
  DCHECK(qkv.num_dims() == 5 && qkv[2] == 3 && qkv.num_elements() > 0, "{}: qkv must be [B,T,3,H,D], got {}", op,
         qkv.text());
  REQUIRE(qkv[4] <= kMaxHeadDim, ErrorCode::kUsage,
          "attention takes at most {} values per head, got {} (--hidden-size / --num-attention-heads)", kMaxHeadDim,
          qkv[4]);
  DCHECK(dropout.probability >= 0 && dropout.probability < 1, "{}: dropout {}", op, dropout.probability);
  return {qkv[0], qkv[1], qkv[3], qkv[4], scale, dropout};
}

static_assert(cpu::kMaxHeadDim == kMaxHeadDim && cuda::kMaxHeadDim >= kMaxHeadDim);

cuda::AttentionCall gpu_call(std::string_view op, const ConstTensorView& qkv, const cpu::AttentionSizes& s) {
  const size_t part_bytes = static_cast<size_t>(s.heads * s.head_dim) * dtype_bytes(qkv.dtype);
  const int64_t row = 3 * s.heads * s.head_dim;
  return {.element = element_of(op, qkv.dtype),
          .batch = s.batch,
          .length = s.sequence,
          .num_heads = s.heads,
          .num_kv_heads = s.heads,
          .head_dim = s.head_dim,
          .q = qkv.data,
          .k = qkv.data + part_bytes,
          .v = qkv.data + 2 * part_bytes,
          .q_row = row,
          .kv_row = row,
          .scale = s.scale,
          .dropout = s.dropout};
}

}  // namespace

void attention_forward(TensorView out, TensorView lse, ConstTensorView qkv, double scale, const Dropout& dropout,
                       Stream& stream) {
  constexpr std::string_view kOp = "attention_forward";
  const cpu::AttentionSizes s = sizes_of(kOp, qkv.shape, scale, dropout);
  check(kOp, "out", out, {s.batch, s.sequence, s.heads, s.head_dim}, qkv.dtype);
  check(kOp, "lse", lse, {s.batch, s.heads, s.sequence}, stat_dtype(qkv.dtype));
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::attention_forward(out.data, lse.as<float>(), gpu_call(kOp, qkv, s), gpu->handle());
  }
  with_compute_type(qkv.dtype, kOp, [&]<typename T>(T) {
    launch(stream, kOp, [s, out = out.as<T>(), lse = lse.as<cpu::Compute<T>>(), qkv = qkv.as<T>()] {
      cpu::attention_forward(out, lse, qkv, s);
    });
  });
}

// One number per row: delta = sum over d of dout * out.
size_t attention_backward_workspace_bytes(Shape qkv, DType dtype) {
  return static_cast<size_t>(qkv[0] * qkv[1] * qkv[3]) * dtype_bytes(stat_dtype(dtype));
}

void attention_backward(TensorView dqkv, ConstTensorView dout, ConstTensorView qkv, ConstTensorView out,
                        ConstTensorView lse, double scale, const Dropout& dropout, TensorView workspace,
                        Stream& stream) {
  constexpr std::string_view kOp = "attention_backward";
  const cpu::AttentionSizes s = sizes_of(kOp, qkv.shape, scale, dropout);
  check(kOp, "dqkv", dqkv, qkv.shape, qkv.dtype);
  check(kOp, "dout", dout, {s.batch, s.sequence, s.heads, s.head_dim}, qkv.dtype);
  check(kOp, "out", out, dout.shape, qkv.dtype);
  check(kOp, "lse", lse, {s.batch, s.heads, s.sequence}, stat_dtype(qkv.dtype));
  DCHECK(workspace.bytes() >= attention_backward_workspace_bytes(qkv.shape, qkv.dtype),
         "{}: workspace has {} bytes, needs {}", kOp, workspace.bytes(),
         attention_backward_workspace_bytes(qkv.shape, qkv.dtype));
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    const size_t part_bytes = static_cast<size_t>(s.heads * s.head_dim) * dtype_bytes(qkv.dtype);
    return cuda::attention_backward(dqkv.data, dqkv.data + part_bytes, dqkv.data + 2 * part_bytes, dout.data, out.data,
                                    lse.as<float>(), gpu_call(kOp, qkv, s), reinterpret_cast<float*>(workspace.data),
                                    gpu->handle());
  }
  with_compute_type(qkv.dtype, kOp, [&]<typename T>(T) {
    launch(stream, kOp,
           [s, dqkv = dqkv.as<T>(), dout = dout.as<T>(), qkv = qkv.as<T>(), out = out.as<T>(),
            lse = lse.as<cpu::Compute<T>>(), delta = reinterpret_cast<cpu::Compute<T>*>(workspace.data)] {
             cpu::attention_backward(dqkv, dout, qkv, out, lse, delta, s);
           });
  });
}

}  // namespace ashlar::kernels
