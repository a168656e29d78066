// Token and position tables on a GPU; the contract is kernels/embedding.h. y, table and dy are of `element`, gradients
// of tables are fp32. The bits are those of the CPU.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

void embedding_forward(Element element, void* y, const int32_t* tokens, const void* table, int64_t num_tokens,
                       int64_t columns, int64_t vocab_begin, int64_t num_valid, StreamHandle stream);
// order [num_tokens]: the stable order of the tokens by value.
void embedding_backward(Element element, float* dtable, const void* dy, const int32_t* tokens, const int32_t* order,
                        int64_t num_tokens, int64_t columns, int64_t vocab_begin, int64_t num_valid,
                        StreamHandle stream);
void position_forward(Element element, void* y, const void* table, int64_t rows, int64_t columns,
                      const SampleRows& place, StreamHandle stream);
// table_length >= place.length; positions that dy does not have are zeroed unless `add`.
void position_backward(Element element, float* dtable, const void* dy, int64_t rows, int64_t table_length,
                       int64_t columns, const SampleRows& place, bool add, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
