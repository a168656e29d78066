#include "kernels/matmul.h"

#include "kernels/activation.h"
#include "kernels/checks.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cuda/bias.h"
#include "kernels/dispatch.h"
#include "kernels/gpu_matmul.h"
#include "kernels/stat_dtype.h"

namespace ashlar::kernels {
namespace {

void check_matrix(std::string_view op, std::string_view name, const ConstTensorView& x, DType dtype) {
  DCHECK(x.shape.num_dims() == 2 && x.num_elements() > 0, "{}: {} must be a matrix, got {}", op, name, x.shape.text());
  DCHECK(x.dtype == dtype, "{}: {} is {}, expected {}", op, name, dtype_name(x.dtype), dtype_name(dtype));
  DCHECK(x.data != nullptr, "{}: {} has no memory", op, name);
}

void check_bias(std::string_view op, const ConstTensorView& bias, const ConstTensorView& y) {
  DCHECK(bias.data == nullptr || (bias.num_elements() == y.shape[1] && bias.dtype == y.dtype),
         "{}: bias is {} {}, y {} {}", op, dtype_name(bias.dtype), bias.shape.text(), dtype_name(y.dtype),
         y.shape.text());
}

// y [R,N] from x [R,K] and w [N,K].
void check_linear(std::string_view op, const ConstTensorView& y, const ConstTensorView& x, const ConstTensorView& w) {
  check_matrix(op, "y", y, y.dtype);
  check_matrix(op, "x", x, y.dtype);
  check_matrix(op, "w", w, y.dtype);
  DCHECK(x.shape[0] == y.shape[0] && w.shape[0] == y.shape[1] && w.shape[1] == x.shape[1], "{}: y {} x {} w {}", op,
         y.shape.text(), x.shape.text(), w.shape.text());
}

using cuda::Epilogue;
using cuda::MatmulCall;

// y [R,N] = x [R,K] w [N,K]^T on a GPU, to which the caller adds its epilogue.
MatmulCall linear_call(std::string_view op, TensorView y, const ConstTensorView& x, const ConstTensorView& w) {
  const Element element = element_of(op, y.dtype);
  return {.input = element,
          .output = element,
          .c = y.data,
          .a = x.data,
          .b = w.data,
          .m = y.shape[0],
          .n = y.shape[1],
          .k = x.shape[1],
          .transpose_b = true};
}

}  // namespace

void matmul(TensorView c, ConstTensorView a, Transpose transpose_a, ConstTensorView b, Transpose transpose_b,
            Write write, Stream& stream) {
  constexpr std::string_view kOp = "matmul";
  check_matrix(kOp, "a", a, a.dtype);
  check_matrix(kOp, "b", b, a.dtype);
  check_matrix(kOp, "c", c, c.dtype == DType::kF32 ? stat_dtype(a.dtype) : a.dtype);
  const bool flip_a = transpose_a == Transpose::kYes;
  const bool flip_b = transpose_b == Transpose::kYes;
  const int64_t m = c.shape[0];
  const int64_t n = c.shape[1];
  const int64_t k = a.shape[flip_a ? 0 : 1];
  DCHECK(a.shape[flip_a ? 1 : 0] == m && b.shape[flip_b ? 1 : 0] == k && b.shape[flip_b ? 0 : 1] == n,
         "matmul: {} {} x {} {} does not give {}", a.shape.text(), flip_a ? "transposed" : "", b.shape.text(),
         flip_b ? "transposed" : "", c.shape.text());
  const bool accumulate = write == Write::kAdd;
  DCHECK(!accumulate || c.dtype == stat_dtype(c.dtype), "matmul: sums in {} would be rounded each time",
         dtype_name(c.dtype));
  if (GpuStream* gpu = gpu_of(stream, kOp)) {
    return gpu_matmul(*gpu, {.input = element_of(kOp, a.dtype),
                             .output = element_of(kOp, c.dtype),
                             .c = c.data,
                             .a = a.data,
                             .b = b.data,
                             .m = m,
                             .n = n,
                             .k = k,
                             .transpose_a = flip_a,
                             .transpose_b = flip_b,
                             .add = accumulate});
  }
  with_compute_type(a.dtype, kOp, [&]<typename T>(T) {
    const auto run = [&](auto* c_data) {
      launch(stream, kOp,
             [=, a = a.as<T>(), b = b.as<T>()] { cpu::matmul(c_data, a, flip_a, b, flip_b, m, n, k, accumulate); });
    };
    c.dtype == a.dtype ? run(c.as<T>()) : run(c.as<cpu::Compute<T>>());
  });
}

void linear_forward(TensorView y, ConstTensorView x, ConstTensorView w, ConstTensorView bias, Stream& stream) {
  constexpr std::string_view kOp = "linear_forward";
  check_linear(kOp, y, x, w);
  check_bias(kOp, bias, y);
  if (GpuStream* gpu = gpu_of(stream, kOp)) {
    MatmulCall call = linear_call(kOp, y, x, w);
    call.epilogue = bias.data == nullptr ? Epilogue::kNone : Epilogue::kBias;
    call.bias = bias.data;
    return gpu_matmul(*gpu, call);
  }
  const int64_t r = y.shape[0];
  const int64_t n = y.shape[1];
  const int64_t k = x.shape[1];
  with_compute_type(y.dtype, kOp, [&]<typename T>(T) {
    const T* bias_data = bias.data == nullptr ? nullptr : bias.as<T>();
    launch(stream, kOp,
           [=, y = y.as<T>(), x = x.as<T>(), w = w.as<T>()] { cpu::linear_forward(y, x, w, bias_data, r, n, k); });
  });
}

void linear_activation_forward(TensorView y, TensorView pre, ConstTensorView x, ConstTensorView w, ConstTensorView bias,
                               Activation activation, Stream& stream) {
  constexpr std::string_view kOp = "linear_activation_forward";
  check_linear(kOp, pre, x, w);
  check_bias(kOp, bias, pre);
  check_view(kOp, "y", y, pre.dtype, pre.num_elements());
  if (GpuStream* gpu = gpu_of(stream, kOp)) {
    MatmulCall call = linear_call(kOp, y, x, w);
    call.epilogue = Epilogue::kBiasActivation;
    call.bias = bias.data;
    call.pre = pre.data;
    call.activation = activation;
    return gpu_matmul(*gpu, call);
  }
  linear_forward(pre, x, w, bias, stream);
  activation_forward(y, pre, activation, stream);
}

void linear_backward_input(TensorView dx, ConstTensorView dy, ConstTensorView w, Stream& stream) {
  matmul(dx, dy, Transpose::kNo, w, Transpose::kNo, Write::kOverwrite, stream);
}

void linear_activation_backward_input(TensorView dx, ConstTensorView dy, ConstTensorView w, ConstTensorView pre,
                                      Activation activation, Stream& stream) {
  constexpr std::string_view kOp = "linear_activation_backward_input";
  check_linear(kOp, dy, dx, w);
  check_view(kOp, "pre", pre, dx.dtype, dx.num_elements());
  DCHECK(dx.data != pre.data, "{}: pre is overwritten before it is read", kOp);
  if (GpuStream* gpu = gpu_of(stream, kOp)) {
    const Element element = element_of(kOp, dx.dtype);
    return gpu_matmul(*gpu, {.input = element,
                             .output = element,
                             .c = dx.data,
                             .a = dy.data,
                             .b = w.data,
                             .m = dx.shape[0],
                             .n = dx.shape[1],
                             .k = dy.shape[1],
                             .epilogue = Epilogue::kActivationBackward,
                             .activation = activation,
                             .pre = const_cast<std::byte*>(pre.data)});  // only read with this epilogue
  }
  linear_backward_input(dx, dy, w, stream);
  activation_backward(dx, dx, pre, activation, stream);
}

void linear_backward_weight(TensorView dw, ConstTensorView dy, ConstTensorView x, Write write, Stream& stream) {
  check_matrix("linear_backward_weight", "dw", dw, stat_dtype(dy.dtype));
  matmul(dw, dy, Transpose::kYes, x, Transpose::kNo, write, stream);
}

void bias_backward(TensorView db, ConstTensorView dy, Write write, Stream& stream) {
  constexpr std::string_view kOp = "bias_backward";
  check_matrix(kOp, "dy", dy, dy.dtype);
  const int64_t r = dy.shape[0];
  const int64_t n = dy.shape[1];
  check_view(kOp, "db", db, stat_dtype(dy.dtype), n);
  const bool accumulate = write == Write::kAdd;
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::bias_backward(element_of(kOp, dy.dtype), db.as<float>(), dy.data, r, n, accumulate,
                               gpu->scratch(kOp, cuda::bias_backward_scratch_bytes(r, n)), gpu->handle());
  }
  with_compute_type(dy.dtype, kOp, [&]<typename T>(T) {
    launch(stream, kOp,
           [=, db = db.as<cpu::Compute<T>>(), dy = dy.as<T>()] { cpu::bias_backward(db, dy, r, n, accumulate); });
  });
}

}  // namespace ashlar::kernels
