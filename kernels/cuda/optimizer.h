// Parameter updates on a GPU; the contract is kernels/optimizer.h. Parameters and moments are fp32, gradients
// fp32 or bf16, and the copy of rounded parameters is of `copy_element`. The bits are those of the CPU.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

// results [kNumStepResults] and scalars [kNumUpdateScalars] from totals [2] and squares [num_squares].
void finish_step(double* results, double* scalars, const double* totals, const double* squares, int64_t num_squares,
                 const StepSettings& settings, StreamHandle stream);
// copy may be null.
void adamw_step(float* param, float* first_moment, float* second_moment, const void* grad, Element grad_element,
                void* copy, Element copy_element, int64_t n, const double* scalars, double weight_decay,
                StreamHandle stream);
void sgd_step(float* param, const void* grad, Element grad_element, void* copy, Element copy_element, int64_t n,
              const double* scalars, double weight_decay, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
