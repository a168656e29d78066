// Matrix products. On the CPU through oneDNN's sgemm (fp32); fp64 runs plain loops, for finite differences.
// Equal calls give equal bits on an equal number of threads. Between numbers of threads fp32 products may differ by
// rounding: oneDNN 2.6 splits long sums for some shapes (seen at 768 x 768 x 1024 with 1 and 2 threads), and tiles of
// our own that never change cost one thread 2 to 8 %. fp64, the plain build and bias_backward do not differ.
#pragma once

#include "kernels/plain_types.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Whether a result replaces what the output held or is added to it.
enum class Write { kOverwrite, kAdd };

enum class Transpose { kNo, kYes };

// Stream-ordered. c [M,N] (+)= op(a) op(b); op(a) is [M,K], op(b) is [K,N]; a is stored [K,M] when transposed. c has
// the dtype of a and b, or is fp32; what is added to is fp32 or fp64.
void matmul(TensorView c, ConstTensorView a, Transpose transpose_a, ConstTensorView b, Transpose transpose_b,
            Write write, Stream& stream);

// Stream-ordered. y [R,N] = x [R,K] w [N,K]^T + bias [N]; a bias without data means none.
void linear_forward(TensorView y, ConstTensorView x, ConstTensorView w, ConstTensorView bias, Stream& stream);
// Stream-ordered. pre [R,N] = x w^T + bias, y [R,N] = act(pre as stored).
void linear_activation_forward(TensorView y, TensorView pre, ConstTensorView x, ConstTensorView w, ConstTensorView bias,
                               Activation activation, Stream& stream);
// Stream-ordered. dx [R,K] = dy [R,N] w [N,K].
void linear_backward_input(TensorView dx, ConstTensorView dy, ConstTensorView w, Stream& stream);
// Stream-ordered. dx [R,K] = (dy [R,N] w [N,K], rounded as if stored) * act'(pre [R,K]); dx must not be pre.
void linear_activation_backward_input(TensorView dx, ConstTensorView dy, ConstTensorView w, ConstTensorView pre,
                                      Activation activation, Stream& stream);
// Stream-ordered. dw [N,K] (+)= dy [R,N]^T x [R,K]; dw is fp32 (fp64 where dy is).
void linear_backward_weight(TensorView dw, ConstTensorView dy, ConstTensorView x, Write write, Stream& stream);
// Stream-ordered. db [N] (+)= sum over rows of dy [R,N], in ascending row order within fixed blocks; db is fp32 (fp64
// where dy is).
void bias_backward(TensorView db, ConstTensorView dy, Write write, Stream& stream);

}  // namespace ashlar::kernels
