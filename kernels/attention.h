// Causal self-attention that never stores T x T scores: blocked with an online softmax (Dao et al., arXiv:2205.14135,
// algorithm 1; backward: Dao, arXiv:2307.08691, algorithm 2, with the sums over blocks in a fixed order).
#pragma once

#include "kernels/plain_types.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

inline constexpr int64_t kMaxHeadDim = 256;  // values per head, on every device

// qkv [B,T,3,H,D] holds q, k, v. Softmax weights are dropped as `dropout` says, the same ones in both passes; the
// log-sum-exp does not know of it.

// Stream-ordered. out [B,T,H,D] = dropout(softmax(scale * q k^T, causal)) v, lse [B,H,T] (fp32, or fp64) = log of the
// softmax denominator.
void attention_forward(TensorView out, TensorView lse, ConstTensorView qkv, double scale, const Dropout& dropout,
                       Stream& stream);

// Bytes of scratch that attention_backward needs for this shape. Pure.
size_t attention_backward_workspace_bytes(Shape qkv, DType dtype);

// Stream-ordered. dqkv [B,T,3,H,D] = gradient; dqkv must not overlap qkv.
void attention_backward(TensorView dqkv, ConstTensorView dout, ConstTensorView qkv, ConstTensorView out,
                        ConstTensorView lse, double scale, const Dropout& dropout, TensorView workspace,
                        Stream& stream);

}  // namespace ashlar::kernels
