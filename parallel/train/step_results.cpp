#include "parallel/train/step_results.h"

#include <algorithm>

#include "runtime/comm/wait_reached.h"

namespace ashlar {

StepResults::StepResults(RankContext& rank, const ProcessGrid& grid, Stream& stream)
    : rank_(rank),
      grid_(grid),
      stream_(stream),
      cells_(rank.device, DType::kF64, {kNumCells}, "sums of a step", MemoryItem::kWorkspace),
      results_(rank.device, DType::kF64, {kernels::kNumStepResults}, "numbers of a step", MemoryItem::kWorkspace) {
  Arena counting;
  lay_out_step_numbers(counting);
  host_ = rank.device.allocate_host(counting.used(), "numbers of steps in host memory", MemoryItem::kBatches);
  Arena arena(host_.data(), host_.bytes());
  const StepNumbersOnHost numbers = lay_out_step_numbers(arena);
  one_ = numbers.one;
  for (size_t at = 0; at < places_.size(); ++at) {
    static_cast<StepNumbersOnHost::Place&>(places_[at]) = numbers.places[at];
    places_[at].arrived = rank.device.create_event();
  }
  *one_.as<double>() = 1;
  allow_updates();
  stream_.synchronize();
}

void StepResults::allow_updates() {
  stream_.copy(results_.view().slice(kernels::kStepFinite, kernels::kStepFinite + 1).data, one_.data, one_.bytes());
}

void StepResults::share(ConstTensorView local_totals, int stop_signal) {
  Place& place = places_[num_submitted_ % kMaxPending];
  wait_reached(*place.arrived, stream_, rank_.recorder, "the step before the last one");
  double* signals = place.cells.as<double>() + 2;
  for (size_t at = 0; at < kStopSignals.size(); ++at) {
    signals[at] = kStopSignals[at] == stop_signal ? 1 : 0;
  }
  const TensorView totals = cells_.view().slice(0, 2);
  if (grid_.is_last_stage() && grid_.coordinate().tensor == 0) {
    stream_.copy(totals.data, local_totals.data, totals.bytes());
  } else {
    stream_.fill_zero(totals.data, totals.bytes());
  }
  const TensorView signal_cells = cells_.view().slice(2, kNumCells);
  stream_.copy(signal_cells.data, signals, signal_cells.bytes());
  grid_.world().all_reduce(cells_, ReduceOp::kSum, stream_).wait(stream_);
}

void StepResults::submit(const Submitted& step) {
  DCHECK(num_pending() < kMaxPending, "{} steps are submitted and unread", num_pending());
  Place& place = places_[num_submitted_ % kMaxPending];
  place.submitted = step;
  stream_.copy(place.results.data, results_.view().data, place.results.bytes());
  stream_.copy(place.cells.data, cells_.view().data, place.cells.bytes());
  stream_.record(*place.arrived);
  ++num_submitted_;
}

StepResults::Numbers StepResults::take() {
  DCHECK(num_pending() > 0, "no step is submitted");
  const Place& place = places_[num_taken_ % kMaxPending];
  wait_reached(*place.arrived, stream_, rank_.recorder, "the end of a step");
  ++num_taken_;
  Numbers numbers;
  std::copy_n(place.results.as<double>(), numbers.results.size(), numbers.results.begin());
  for (size_t at = 0; at < kStopSignals.size(); ++at) {
    if (place.cells.as<double>()[2 + at] > 0) {
      numbers.stop_signal = std::max(numbers.stop_signal, kStopSignals[at]);
    }
  }
  return numbers;
}

void StepResults::drop_pending() {
  while (num_pending() > 0) {
    take();
  }
  allow_updates();
}

}  // namespace ashlar
