#include "parallel/pipeline/host_batches.h"

#include <numeric>

#include "runtime/comm/wait_reached.h"

namespace ashlar {

void HostBatches::lay_out(Arena& arena, const BatchShape& shape, int num_microbatches) {
  const Shape tokens{shape.batch, shape.seq};
  for (Set& set : sets_) {
    set.batches.clear();
    for (int microbatch = 0; microbatch < num_microbatches; ++microbatch) {
      MicroBatch& batch = set.batches.emplace_back();
      batch.tokens = take_tensor(arena, DType::kI32, tokens);
      batch.targets = take_tensor(arena, DType::kI32, tokens);
      batch.mask = take_tensor(arena, DType::kF32, tokens);
      batch.order = take_tensor(arena, DType::kI32, {tokens.num_elements()});
    }
    set.num_targets = take_tensor(arena, DType::kF64, {1});
  }
}

void HostBatches::create_events(Device& device) {
  for (Set& set : sets_) {
    set.taken = device.create_event();
  }
}

void HostBatches::begin_run(Stream& stream, FlightRecorder& recorder) {
  at_ = 1 - at_;
  Set& set = sets_[at_];
  wait_reached(*set.taken, stream, recorder, "the micro-batches of the step before the last one");
  *set.num_targets.as<double>() = 0;
}

void HostBatches::read(const BatchReader& reader, int microbatch) {
  Set& set = sets_[at_];
  MicroBatch& batch = set.batches[static_cast<size_t>(microbatch)];
  reader(microbatch, batch);
  const float* mask = batch.mask.as<float>();
  *set.num_targets.as<double>() += std::accumulate(mask, mask + batch.mask.num_elements(), 0.0);
}

void HostBatches::copy_to(MicroBatch& to, int microbatch, Stream& stream) {
  MicroBatch& batch = sets_[at_].batches[static_cast<size_t>(microbatch)];
  const auto copy = [&](TensorView device, ConstTensorView from) { stream.copy(device.data, from.data, from.bytes()); };
  copy(to.tokens, batch.tokens);
  copy(to.targets, batch.targets);
  copy(to.mask, batch.mask);
  if (to.order.data != nullptr) {
    sort_tokens(batch);
    copy(to.order, batch.order);
  }
}

void HostBatches::copy_num_targets(TensorView total, Stream& stream) const {
  stream.copy(total.data, sets_[at_].num_targets.data, sizeof(double));
}

void HostBatches::end_run(Stream& stream) {
  stream.record(*sets_[at_].taken);
}

}  // namespace ashlar
