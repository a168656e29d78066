// What a step leaves behind: sums that all ranks share, the numbers of its update, and how the host gets to see them
// without stopping the device.
#pragma once

#include <array>
#include <memory>

#include "parallel/grid/process_grid.h"
#include "parallel/plan/step_numbers.h"
#include "parallel/train/signals.h"

namespace ashlar {

// Numbers of up to kMaxPending steps at once, each with a place in pinned host memory.
class StepResults {
 public:
  static constexpr size_t kMaxPending = kMostPendingSteps;

  // What the host knew when it put a step on the stream, to go back to when the step turns out not to be finite.
  struct Submitted {
    int64_t step = 0;
    int64_t iteration_before = 0;
    int64_t samples_before = 0;
    int64_t updates_before = 0;
    double learning_rate = 0;
  };
  struct Numbers {
    std::array<double, kernels::kNumStepResults> results{};  // by kernels::StepResultIndex
    int stop_signal = 0;                                     // the largest over the ranks
  };

  // Blocks the host.
  StepResults(RankContext& rank, const ProcessGrid& grid, Stream& stream);

  // Collective over the world; stream-ordered. Sums loss and targets of the ranks that speak for their data coordinate,
  // and tells all ranks of this one's stop signal (0: none).
  void share(ConstTensorView local_totals, int stop_signal);
  ConstTensorView totals() const { return cells_.view().slice(0, 2); }  // [2] fp64, in device memory
  TensorView results() const { return results_; }                       // [kernels::kNumStepResults] fp64

  // Stream-ordered. The numbers of a step are on their way to the host; blocks the host when kMaxPending are unread.
  void submit(const Submitted& step);
  int64_t newest_step() const {  // that was submitted, 0: none
    return num_submitted_ == 0 ? 0 : places_[(num_submitted_ - 1) % kMaxPending].submitted.step;
  }
  size_t num_pending() const { return num_submitted_ - num_taken_; }
  const Submitted& oldest() const { return places_[num_taken_ % kMaxPending].submitted; }
  // Blocks the host until the oldest step is done.
  Numbers take();
  // Blocks the host until all submitted steps are done. They are forgotten, and updates happen again.
  void drop_pending();
  // Stream-ordered. Updates happen again behind a step that was not finite.
  void allow_updates();

 private:
  static constexpr int64_t kNumCells = 2 + static_cast<int64_t>(kStopSignals.size());
  static_assert(kNumCells == kNumStepCells);

  struct Place : StepNumbersOnHost::Place {  // pinned
    Submitted submitted;
    std::unique_ptr<Event> arrived;
  };

  RankContext& rank_;
  const ProcessGrid& grid_;
  Stream& stream_;
  Tensor cells_;    // [kNumCells] fp64: loss sum, targets, ranks that received each stop signal
  Tensor results_;  // [kNumStepResults] fp64
  Buffer host_;
  TensorView one_;  // [1] fp64, pinned
  std::array<Place, kMaxPending> places_;
  uint64_t num_submitted_ = 0;
  uint64_t num_taken_ = 0;
};

}  // namespace ashlar
