// Parameter updates on the CPU; the contract is kernels/optimizer.h. T is float or double.
#pragma once

#include <cstdint>

#include "kernels/optimizer.h"

namespace ashlar::kernels::cpu {

template <typename T>
void adamw_step(T* param, T* first_moment, T* second_moment, const T* grad, int64_t n, const AdamWArgs& args);
template <typename T>
void sgd_step(T* param, const T* grad, int64_t n, double rate, double weight_decay, double grad_scale);

}  // namespace ashlar::kernels::cpu
