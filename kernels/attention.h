// Causal self-attention that never stores T x T scores: blocked with an online softmax (Dao et al., arXiv:2205.14135,
// algorithm 1; backward: Dao, arXiv:2307.08691, algorithm 2, with the sums over blocks in a fixed order).
#pragma once

#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Stream-ordered. out [B,T,H,D] = softmax(scale * q k^T, causal) v, lse [B,H,T] = log of the softmax denominator.
// qkv [B,T,3,H,D] holds q, k, v.
void attention_forward(TensorView out, TensorView lse, ConstTensorView qkv, double scale, Stream& stream);

// Bytes of scratch that attention_backward needs for this shape. Pure.
size_t attention_backward_workspace_bytes(Shape qkv, DType dtype);

// Stream-ordered. dqkv [B,T,3,H,D] = gradient; dqkv must not overlap qkv.
void attention_backward(TensorView dqkv, ConstTensorView dout, ConstTensorView qkv, ConstTensorView out,
                        ConstTensorView lse, double scale, TensorView workspace, Stream& stream);

}  // namespace ashlar::kernels
