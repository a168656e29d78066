#include "parallel/train/test_faults.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <cstring>
#include <limits>

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
      overflow_(parse_test_point("test-overflow", options.test_overflow)),
      write_(parse_test_point("test-write-fault", options.test_write_fault)),
      offload_(parse_test_point("test-offload-fault", options.test_offload_fault)) {}

void TestFaults::install(Training& training) {
  ExecutorHooks hooks;
  if (overflow_) {
    find_gradient(training);
    infinity_ = training.rank.device.allocate_host(sizeof(float), "--test-overflow");
    *reinterpret_cast<float*>(infinity_.data()) = std::numeric_limits<float>::infinity();
  }
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
  if (overflowing_ != nullptr) {
    hooks.on_gradients = [this, &training](int stage, int microbatch, size_t layer) {
      if (microbatch == 0 && stage == overflow_stage_ && layer == overflow_layer_ && is_now(*overflow_, training)) {
        training.stream->copy(overflowing_->grad.data, infinity_.data(), sizeof(float));
        overflow_came_ = true;
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
        nan_came_ = true;
      }
    };
  }
  training.executor.set_hooks(std::move(hooks));
}

// A gradient that counts. What every tensor rank makes whole are equal bits on all of them, so that one of them cannot
// overflow alone, and only the first is looked at; of their own rows each makes a part.
void TestFaults::find_gradient(const Training& training) {
  agree(training.rank.world, [&] {
    if (overflow_->rank != training.rank.world.rank()) {
      return;
    }
    std::vector<std::string> names;
    for (const auto& chunk : training.chunks) {
      const std::vector<std::vector<Parameter*>> layers = chunk->parameters_by_layer();
      for (size_t layer = 0; layer < layers.size(); ++layer) {
        for (const Parameter* parameter : layers[layer]) {
          const bool is_own = parameter->shard.is_split() || parameter->sum_over_tensor;
          if (!is_own && training.grid.coordinate().tensor != 0) {
            continue;
          }
          names.push_back(parameter->name);
          if (overflowing_ == nullptr && (overflow_->tensor.empty() || overflow_->tensor == parameter->name)) {
            overflowing_ = parameter;
            overflow_stage_ = chunk->stage();
            overflow_layer_ = layer;
          }
        }
      }
    }
    REQUIRE(overflowing_ != nullptr, ErrorCode::kUsage,
            "--test-overflow: rank {} ({}) has no tensor {} with a gradient of its own; it has {}", overflow_->rank,
            training.grid.coordinate().text(), overflow_->tensor, fmt::join(names, ", "));
  });
}

void TestFaults::before_checkpoint(const Training& training) const {
  // The state has advanced already: the checkpoint belongs to the step before.
  if (hang_ && hang_->point == "checkpoint" && hang_->rank == training.rank.world.rank() &&
      hang_->step <= training.state.iteration) {
    sleep_for_ever();
  }
}

void TestFaults::warn_of_what_did_not_come(const Training& training) const {
  const TrainOptions& options = training.options;
  const auto warn = [&](const char* flag, const std::string& text, const std::optional<TestPoint>& point, bool came,
                        const char* why) {
    if (point && point->rank == training.rank.world.rank() && !came) {
      training.rank.log.warning("--{} {} did not come: {}", flag, text, why);
    }
  };
  constexpr const char* kOtherSteps = "this run did not take that step";
  warn("test-hang", options.test_hang, hang_, false, kOtherSteps);  // or nobody would be here
  warn("test-nan", options.test_nan, nan_, nan_came_, kOtherSteps);
  warn("test-overflow", options.test_overflow, overflow_, overflow_came_, kOtherSteps);
  warn("test-write-fault", options.test_write_fault, write_, false, "this rank wrote fewer bytes into each checkpoint");
  warn("test-offload-fault", options.test_offload_fault, offload_, false, "fewer bytes were written");
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
