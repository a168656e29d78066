// What a walk over the layers asks of the data axis: values that lie elsewhere, gradients that leave.
#pragma once

#include "parallel/zero/grad_reducer.h"
#include "parallel/zero/value_gather.h"

namespace ashlar {

struct DataSyncOptions {
  int num_microbatches = 1;  // of a step
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
};

class DataSync final : public ParamSync {
 public:
  DataSync(const ProcessGrid& grid, Stream& stream, ParameterStore& store, const DataSyncOptions& options = {})
      : values_(grid, stream, store, options.overlap_param_gather),
        grads_(grid, stream, store, options.num_microbatches, options.overlap_grad_reduce) {}

  ValueGather& values() { return values_; }
  GradReducer& grads() { return grads_; }

  void open_stage(int stage, size_t first) override { values_.open(stage, first); }
  void close_stage(int) override { values_.close(); }
  void need_values(int stage, size_t layer, size_t next) override { values_.need(stage, layer, next); }
  void done_values(int stage, size_t layer) override { values_.done(stage, layer); }
  kernels::Write need_grads(int stage, size_t layer, int microbatch) override {
    return grads_.need(stage, layer, microbatch);
  }
  void done_grads(int stage, size_t layer, int microbatch) override { grads_.done(stage, layer, microbatch); }
  void reduce_grads(int stage, int) override { grads_.reduce(stage); }

 private:
  ValueGather values_;
  GradReducer grads_;
};

}  // namespace ashlar
