// A run as far as its memory, traffic and time depend on it.
#pragma once

#include <string>
#include <vector>

#include "parallel/grid/grid_layout.h"
#include "parallel/model/gpt.h"
#include "parallel/schedule/schedule.h"
#include "parallel/zero/optimizer.h"
#include "runtime/comm/device_request.h"

namespace ashlar {

struct RunShape {
  GptConfig config;                       // padded_vocab is a multiple of grid.tensor
  std::vector<int64_t> layers_per_stage;  // blocks of each of the grid.pipeline stages
  GridShape grid;
  std::string schedule = "1f1b";  // a name that make_schedule knows
  int num_microbatches = 1;       // of one data rank in one step
  BatchShape batch;               // one micro-batch
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  Sharding sharding;      // among the data ranks
  OffloadConfig offload;  // where the optimizer's state lies
  int num_instances = 1;  // groups of data ranks that share among themselves
  DeviceKind device = DeviceKind::kCpu;
  DeviceBackend backend = DeviceBackend::kHost;

  int64_t tokens_per_step() const { return int64_t{grid.data} * num_microbatches * batch.batch * batch.seq; }
};

// Pure. The lists that the run walks, lowered as its settings ask for.
Schedule training_schedule(const RunShape& shape);
Schedule evaluation_schedule(const RunShape& shape);

}  // namespace ashlar
