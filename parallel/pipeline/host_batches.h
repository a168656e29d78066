// The micro-batches of a run in pinned host memory.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "parallel/layers/layer.h"
#include "runtime/comm/flight_recorder.h"

namespace ashlar {

// Fills tokens, targets and mask of one micro-batch of the running step, in host memory. Called once for each
// micro-batch, on the ranks of the first and of the last stage.
using BatchReader = std::function<void(int microbatch, MicroBatch& batch)>;

// Each micro-batch has a place of its own: the stream may still read an earlier one when the host reads the next. Two
// sets take turns, so that the host reads for a run while the device is busy with the one before.
class HostBatches {
 public:
  void lay_out(Arena& arena, const BatchShape& shape, int num_microbatches);
  void create_events(Device& device);

  // Blocks the host until the device has taken what the run before the last one left in this set: long ago, unless it
  // is far behind the host.
  void begin_run(Stream& stream, FlightRecorder& recorder);
  void read(const BatchReader& reader, int microbatch);
  // Stream-ordered. All that `to` has room for; with the order of the tokens where it has that too.
  void copy_to(MicroBatch& to, int microbatch, Stream& stream);
  // Stream-ordered. total [1] fp64: counted targets of what has been read.
  void copy_num_targets(TensorView total, Stream& stream) const;
  void end_run(Stream& stream);

 private:
  struct Set {
    std::vector<MicroBatch> batches;
    TensorView num_targets;        // [1] fp64
    std::unique_ptr<Event> taken;  // the stream has copied all of it
  };
  std::array<Set, 2> sets_;
  size_t at_ = 0;
};

}  // namespace ashlar
