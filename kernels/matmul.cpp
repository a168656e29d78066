#include "kernels/matmul.h"

#include "kernels/activation.h"
#include "kernels/cpu/matmul.h"
#include "kernels/dispatch.h"

namespace ashlar::kernels {
namespace {

void check_matrix(std::string_view op, std::string_view name, const ConstTensorView& x, DType dtype) {
  DCHECK(x.shape.num_dims() == 2 && x.num_elements() > 0, "{}: {} must be a matrix, got {}", op, name, x.shape.text());
  DCHECK(x.dtype == dtype, "{}: {} is {}, the output {}", op, name, dtype_name(x.dtype), dtype_name(dtype));
}

}  // namespace

void matmul(TensorView c, ConstTensorView a, Transpose transpose_a, ConstTensorView b, Transpose transpose_b,
            Write write, Stream& stream) {
  check_matrix("matmul", "c", c, c.dtype);
  check_matrix("matmul", "a", a, c.dtype);
  check_matrix("matmul", "b", b, c.dtype);
  const bool flip_a = transpose_a == Transpose::kYes;
  const bool flip_b = transpose_b == Transpose::kYes;
  const int64_t m = c.shape[0];
  const int64_t n = c.shape[1];
  const int64_t k = a.shape[flip_a ? 0 : 1];
  DCHECK(a.shape[flip_a ? 1 : 0] == m && b.shape[flip_b ? 1 : 0] == k && b.shape[flip_b ? 0 : 1] == n,
         "matmul: {} {} x {} {} does not give {}", a.shape.text(), flip_a ? "transposed" : "", b.shape.text(),
         flip_b ? "transposed" : "", c.shape.text());
  const bool accumulate = write == Write::kAdd;
  with_float_type(c.dtype, "matmul", [&]<typename T>(T) {
    launch(stream, "matmul", [=, c = c.as<T>(), a = a.as<T>(), b = b.as<T>()] {
      cpu::matmul(c, a, flip_a, b, flip_b, m, n, k, accumulate);
    });
  });
}

void linear_forward(TensorView y, ConstTensorView x, ConstTensorView w, ConstTensorView bias, Stream& stream) {
  check_matrix("linear_forward", "y", y, y.dtype);
  check_matrix("linear_forward", "x", x, y.dtype);
  check_matrix("linear_forward", "w", w, y.dtype);
  const int64_t r = y.shape[0];
  const int64_t n = y.shape[1];
  const int64_t k = x.shape[1];
  DCHECK(x.shape[0] == r && w.shape[0] == n && w.shape[1] == k, "linear_forward: y {} x {} w {}", y.shape.text(),
         x.shape.text(), w.shape.text());
  DCHECK(bias.data == nullptr || (bias.num_elements() == n && bias.dtype == y.dtype),
         "linear_forward: bias is {} {}, y {} {}", dtype_name(bias.dtype), bias.shape.text(), dtype_name(y.dtype),
         y.shape.text());
  with_float_type(y.dtype, "linear_forward", [&]<typename T>(T) {
    const T* bias_data = bias.data == nullptr ? nullptr : bias.as<T>();
    launch(stream, "linear_forward",
           [=, y = y.as<T>(), x = x.as<T>(), w = w.as<T>()] { cpu::linear_forward(y, x, w, bias_data, r, n, k); });
  });
}

void linear_activation_forward(TensorView y, TensorView pre, ConstTensorView x, ConstTensorView w, ConstTensorView bias,
                               Activation activation, Stream& stream) {
  linear_forward(pre, x, w, bias, stream);
  activation_forward(y, pre, activation, stream);
}

void linear_residual_forward(TensorView out, ConstTensorView x, ConstTensorView w, ConstTensorView bias,
                             ConstTensorView residual, Stream& stream) {
  linear_forward(out, x, w, ConstTensorView{}, stream);
  add_bias_residual(out, out, residual, bias, stream);
}

void linear_backward_input(TensorView dx, ConstTensorView dy, ConstTensorView w, Stream& stream) {
  matmul(dx, dy, Transpose::kNo, w, Transpose::kNo, Write::kOverwrite, stream);
}

void linear_activation_backward_input(TensorView dx, ConstTensorView dy, ConstTensorView w, ConstTensorView pre,
                                      Activation activation, Stream& stream) {
  linear_backward_input(dx, dy, w, stream);
  activation_backward(dx, dx, pre, activation, stream);
}

void linear_backward_weight(TensorView dw, ConstTensorView dy, ConstTensorView x, Write write, Stream& stream) {
  matmul(dw, dy, Transpose::kYes, x, Transpose::kNo, write, stream);
}

void bias_backward(TensorView db, ConstTensorView dy, Write write, Stream& stream) {
  check_matrix("bias_backward", "dy", dy, db.dtype);
  const int64_t r = dy.shape[0];
  const int64_t n = dy.shape[1];
  DCHECK(db.num_elements() == n, "bias_backward: db {} dy {}", db.shape.text(), dy.shape.text());
  const bool accumulate = write == Write::kAdd;
  with_float_type(db.dtype, "bias_backward", [&]<typename T>(T) {
    launch(stream, "bias_backward",
           [=, db = db.as<T>(), dy = dy.as<T>()] { cpu::bias_backward(db, dy, r, n, accumulate); });
  });
}

}  // namespace ashlar::kernels
