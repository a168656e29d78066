// Parameter updates on a GPU; the contract is kernels/optimizer.h. fp32. The bits are those of the CPU.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

void adamw_step(float* param, float* first_moment, float* second_moment, const float* grad, int64_t n,
                const AdamWArgs& args, StreamHandle stream);
void sgd_step(float* param, const float* grad, int64_t n, double rate, double weight_decay, double grad_scale,
              StreamHandle stream);

}  // namespace ashlar::kernels::cuda
