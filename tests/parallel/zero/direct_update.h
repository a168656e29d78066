// One update outside of a training step: gradients as they are, times a factor.
#pragma once

#include "parallel/zero/optimizer.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar::test {

class DirectUpdate {
 public:
  DirectUpdate(RankContext& rank, Stream& stream, Optimizer& optimizer)
      : stream_(stream),
        optimizer_(optimizer),
        results_(rank.device, DType::kF64, {kernels::kNumStepResults}, "test"),
        totals_(rank.device, DType::kF64, {2}, "test") {
    const double finite[kernels::kNumStepResults] = {0, 0, 0, 1};
    const double one_target[2] = {0, 1};
    HostCopy copy(rank.device);
    copy.to_device(results_.view().data, finite, sizeof(finite));
    copy.to_device(totals_.view().data, one_target, sizeof(one_target));
  }

  // Collective over the model group; blocks the host.
  void operator()(double learning_rate, double grad_scale) {
    optimizer_.sum_squares();
    optimizer_.update(results_, totals_, {.nominal_targets = grad_scale, .learning_rate = learning_rate});
    stream_.synchronize();
  }

 private:
  Stream& stream_;
  Optimizer& optimizer_;
  Tensor results_;  // [kernels::kNumStepResults] fp64
  Tensor totals_;   // [2] fp64
};

}  // namespace ashlar::test
