// Token and position tables on the CPU; the contract is kernels/embedding.h. T is float, double, BFloat16 or Float16.
#pragma once

#include <cstdint>

#include "kernels/cpu/element.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cpu {

template <typename T>
void embedding_forward(T* y, const int32_t* tokens, const T* table, int64_t num_tokens, int64_t columns,
                       int64_t vocab_begin, int64_t num_valid);
template <typename T>
void embedding_backward(Compute<T>* dtable, const T* dy, const int32_t* tokens, int64_t num_tokens, int64_t columns,
                        int64_t vocab_begin, int64_t num_valid);
template <typename T>
void position_forward(T* y, const T* table, int64_t rows, int64_t columns, const SampleRows& place);
// table_length >= place.length; positions that dy does not have are zeroed unless `add`.
template <typename T>
void position_backward(Compute<T>* dtable, const T* dy, int64_t rows, int64_t table_length, int64_t columns,
                       const SampleRows& place, bool add);

}  // namespace ashlar::kernels::cpu
