// The numbers that a step leaves behind, and where the host gets to see them: StepResults lays them out, the plan
// counts them.
#pragma once

#include <array>

#include "kernels/plain_types.h"
#include "runtime/tensor/tensor.h"

namespace ashlar {

// Cells that all ranks sum behind a step: loss, counted targets, one per signal that can stop a run.
inline constexpr int64_t kNumStepCells = 5;
// Steps whose numbers are on their way at once.
inline constexpr size_t kMostPendingSteps = 2;

struct StepNumbersOnHost {
  struct Place {
    TensorView results;  // [kernels::kNumStepResults] fp64
    TensorView cells;    // [kNumStepCells] fp64: what this rank brings, then what all ranks have
  };
  TensorView one;  // [1] fp64
  std::array<Place, kMostPendingSteps> places;
};

inline StepNumbersOnHost lay_out_step_numbers(Arena& pinned) {
  StepNumbersOnHost numbers;
  numbers.one = take_tensor(pinned, DType::kF64, {1});
  for (StepNumbersOnHost::Place& place : numbers.places) {
    place.results = take_tensor(pinned, DType::kF64, {kernels::kNumStepResults});
    place.cells = take_tensor(pinned, DType::kF64, {kNumStepCells});
  }
  return numbers;
}

// In tensors of device memory.
inline constexpr int64_t kStepNumbersDeviceBytes =
    (kNumStepCells + kernels::kNumStepResults) * static_cast<int64_t>(sizeof(double));

}  // namespace ashlar
