// Sums and maxima of one element over ranks, always in ascending rank order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/comm/op_info.h"

namespace ashlar {

// dst[i] = sources[0][i] (+) sources[1][i] (+) ... , added from left to right. fp32, bf16 and fp16 accumulate in fp32
// and are rounded once at the end, fp64 accumulates in fp64, integers are exact. dst may be one of the sources. Throws
// for other element types.
void reduce_in_order(std::byte* dst, std::span<const std::byte* const> sources, int64_t count, DType dtype,
                     ReduceOp op);

}  // namespace ashlar
