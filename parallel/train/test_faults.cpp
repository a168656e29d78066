#include "parallel/train/test_faults.h"

#include <unistd.h>

#include <cstring>

namespace ashlar {
namespace {

[[noreturn]] void sleep_for_ever() {
  while (true) {
    sleep(3600);
  }
}

bool is_now(const TestPoint& point, const Training& training) {
  return point.rank == training.rank.world.rank() && point.step == training.state.iteration + 1;
}

}  // namespace

TestFaults::TestFaults(const TrainOptions& options)
    : hang_(parse_test_point("test-hang", options.test_hang)),
      nan_(parse_test_point("test-nan", options.test_nan)),
      write_(parse_test_point("test-write-fault", options.test_write_fault)) {}

void TestFaults::install(Training& training) {
  ExecutorHooks hooks;
  if (hang_ && hang_->point != "checkpoint") {
    hooks.before_action = [this, &training](const Action& action) {
      const bool here = hang_->point == "receive"
                            ? action.kind == ActionKind::kRecvForward || action.kind == ActionKind::kRecvBackward
                            : action.kind == ActionKind::kForward;  // the first layer's all-reduce comes next
      if (here && is_now(*hang_, training)) {
        sleep_for_ever();
      }
    };
  }
  if (nan_) {
    const size_t bytes = dtype_bytes(training.config.dtype);
    not_a_number_ = training.rank.device.allocate_host(bytes, "--test-nan");
    std::memset(not_a_number_.data(), 0xff, bytes);  // all bits set: a NaN of every type
    hooks.on_activation = [this, &training](int, int microbatch, int, bool is_output, TensorView activation) {
      if (microbatch == 0 && !is_output && is_now(*nan_, training)) {
        training.stream->copy(activation.data, not_a_number_.data(), not_a_number_.bytes());
      }
    };
  }
  training.executor.set_hooks(std::move(hooks));
}

void TestFaults::before_checkpoint(const Training& training) const {
  // The state has advanced already: the checkpoint belongs to the step before.
  if (hang_ && hang_->point == "checkpoint" && hang_->rank == training.rank.world.rank() &&
      hang_->step <= training.state.iteration) {
    sleep_for_ever();
  }
}

StorageOptions TestFaults::storage(const Training& training) const {
  StorageOptions storage;
  if (write_ && write_->rank == training.rank.world.rank()) {
    storage.fail_after = write_->bytes;
    storage.leave_files = write_->kill;
  }
  return storage;
}

}  // namespace ashlar
