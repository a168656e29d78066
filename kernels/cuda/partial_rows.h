// The second stage of sums over rows: partial sums, left by a fixed number of blocks, meet in a fixed order.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"

namespace ashlar::kernels::cuda {

// Stream-ordered. first [columns] = sum over rows of partials [num_partials, columns], or += when `add`. When second is
// not null, it gets the next num_partials rows. The order depends on num_partials alone.
void sum_partial_rows(float* first, float* second, const float* partials, int64_t num_partials, int64_t columns,
                      bool add, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
