// Token and position tables on a GPU; the contract is kernels/embedding.h. fp32. The bits are those of the CPU.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"

namespace ashlar::kernels::cuda {

void embedding_forward(float* y, const int32_t* tokens, const float* table, int64_t num_tokens, int64_t columns,
                       int64_t vocab_begin, int64_t num_valid, StreamHandle stream);
void embedding_backward(float* dtable, const float* dy, const int32_t* tokens, int64_t num_tokens, int64_t columns,
                        int64_t vocab_begin, int64_t num_valid, StreamHandle stream);
void position_forward(float* y, const float* table, int64_t batch, int64_t length, int64_t columns,
                      StreamHandle stream);
// table_length >= length; rows beyond length are zeroed unless `add`.
void position_backward(float* dtable, const float* dy, int64_t batch, int64_t length, int64_t table_length,
                       int64_t columns, bool add, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
