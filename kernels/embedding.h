// Token and position tables.
#pragma once

#include "kernels/matmul.h"
#include "kernels/plain_types.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Stream-ordered. y [N,C] = row (token - vocab_begin) of table [V/t,C], or zeros where the token belongs to another
// rank (not in [vocab_begin, vocab_begin + num_valid)). tokens [N] int32.
void embedding_forward(TensorView y, ConstTensorView tokens, ConstTensorView table, int64_t vocab_begin,
                       int64_t num_valid, Stream& stream);
// Stream-ordered. dtable [V/t,C] (fp32, or fp64) += rows of dy [N,C], in ascending order of n for each table row.
// order [N] int32 = the stable order of the tokens by value; the CPU does without it (no data).
void embedding_backward(TensorView dtable, ConstTensorView dy, ConstTensorView tokens, ConstTensorView order,
                        int64_t vocab_begin, int64_t num_valid, Stream& stream);

// Stream-ordered. y [n,C] += the row of table [T',C] of each row's position, T <= T'. n is whatever comes before the
// last dim.
void position_forward(TensorView y, ConstTensorView table, const SampleRows& place, Stream& stream);
// Stream-ordered. dtable [T',C] (fp32, or fp64) (+)= sum of the rows of dy [n,C] at each position, in ascending order;
// positions that dy does not have are set to zero when overwriting.
void position_backward(TensorView dtable, ConstTensorView dy, const SampleRows& place, Write write, Stream& stream);

}  // namespace ashlar::kernels
