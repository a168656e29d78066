// Parameter updates on the CPU; the contract is kernels/optimizer.h. T is float or double.
#pragma once

#include <cstdint>

#include "kernels/plain_types.h"
#include "runtime/base/dtype.h"

namespace ashlar::kernels::cpu {

void finish_step(double* results, double* scalars, const double* totals, const double* squares, int64_t num_squares,
                 const StepSettings& settings);

// Grad is T or BFloat16. Copy is BFloat16 or Float16; copy may be null.
template <typename T, typename Grad, typename Copy>
void adamw_step(T* param, T* first_moment, T* second_moment, const Grad* grad, Copy* copy, int64_t n,
                const double* scalars, double weight_decay);
template <typename T, typename Grad, typename Copy>
void sgd_step(T* param, const Grad* grad, Copy* copy, int64_t n, const double* scalars, double weight_decay);

}  // namespace ashlar::kernels::cpu
