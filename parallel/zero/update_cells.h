// Numbers of an update that stand in device memory, all fp64: the optimizer allocates them, the plan counts them.
#pragma once

#include <cstdint>

#include "kernels/optimizer.h"
#include "runtime/tensor/tensor.h"

namespace ashlar {

struct UpdateCells {
  Shape block_sums;   // [blocks of this rank's distinct tensors]: squares
  Shape tensor_sums;  // [tensors of all stages, t]
  Shape scalars{kernels::kNumUpdateScalars};

  int64_t bytes() const {
    return (block_sums.num_elements() + tensor_sums.num_elements() + scalars.num_elements()) *
           static_cast<int64_t>(sizeof(double));
  }
};

// Pure. `num_tensors` of all stages: a tied table is one.
inline UpdateCells update_cells(int64_t num_blocks, int64_t num_tensors, int tensor_size) {
  return {.block_sums = {num_blocks}, .tensor_sums = {num_tensors, tensor_size}};
}

}  // namespace ashlar
