// The faults of the test options (--test-hang, --test-nan, --test-overflow, --test-write-fault; --test-offload-fault is
// the state's own): a documented way to see how a job ends.
#pragma once

#include "parallel/train/training.h"
#include "runtime/checkpoint/storage.h"

namespace ashlar {

class TestFaults {
 public:
  explicit TestFaults(const TrainOptions& options);

  // Collective. Hooks that put the faults into the steps of `training`, which must outlive the run. Throws
  // AgreedError(kUsage) when a rank has no tensor of --test-overflow.
  void install(Training& training);
  // Sleeps for ever when this rank is to hang before the checkpoint of its present step.
  void before_checkpoint(const Training& training) const;
  // What the disk does to this rank.
  StorageOptions storage(const Training& training) const;
  // Whether a failed write shall end the process at once instead of being reported.
  bool kill_on_write_fault() const { return write_ && write_->kill; }
  // At the end of a run: warns of faults of this rank that did not come, so that nobody thinks the run stood them.
  void warn_of_what_did_not_come(const Training& training) const;

 private:
  std::optional<TestPoint> hang_;
  std::optional<TestPoint> nan_;
  std::optional<TestPoint> overflow_;
  std::optional<TestPoint> write_;
  std::optional<TestPoint> offload_;
  bool nan_came_ = false;
  bool overflow_came_ = false;
  void find_gradient(const Training& training);

  Buffer not_a_number_;                     // pinned, of the type of the activations
  Buffer infinity_;                         // pinned, of the type of the gradients
  const Parameter* overflowing_ = nullptr;  // on the rank that it is about
  int overflow_stage_ = 0;
  size_t overflow_layer_ = 0;
};

}  // namespace ashlar
