// Everything one rank holds while it trains, put together in the order of dependence, and the step that uses it.
#pragma once

#include <memory>
#include <vector>

#include "parallel/grid/process_grid.h"
#include "parallel/model/gpt.h"
#include "parallel/pipeline/executor.h"
#include "parallel/train/options.h"
#include "parallel/train/signals.h"
#include "parallel/zero/grad_reducer.h"
#include "parallel/zero/lr_schedule.h"
#include "parallel/zero/optimizer.h"
#include "runtime/data/batch.h"

namespace ashlar {

// Where a run stands. Data position, learning rate and random state are pure functions of it, so it is all that a
// checkpoint needs beside tensors.
struct TrainState {
  int64_t iteration = 0;  // steps done
  int64_t consumed_samples = 0;
};

// Pure. The model that resolved options describe.
GptConfig gpt_config(const TrainOptions& options, DType dtype = DType::kF32);
GridShape grid_shape(const TrainOptions& options);
RankOrder rank_order(const TrainOptions& options);

class Training {
 public:
  // Collective. `options` are resolved (resolve_options). Initial weights are set from options.seed.
  Training(RankContext& rank, const TrainOptions& options, DType dtype = DType::kF32);

  const TrainOptions options;
  const GptConfig config;
  RankContext& rank;
  const std::unique_ptr<Stream> stream;
  ProcessGrid grid;
  std::vector<std::unique_ptr<StageChunk>> chunks;  // this rank's stages
  ParameterStore store;
  GradReducer reducer;
  Executor executor;
  Optimizer optimizer;
  const LrSchedule lr_schedule;
  TrainState state;
};

struct StepResult {
  double loss = 0;       // mean over the counted targets of the global batch
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  double num_targets = 0;  // counted in the global batch
  bool finite = true;      // false: nothing was updated
  int stop_signal = 0;     // received by some rank before the passes of this step were done; 0: none
};

// Collective. Blocks the host. One optimizer step on the global batch at training.state: forward and backward of all
// micro-batches, gradients to sums over counted targets divided by their global count, clip, update; the state
// advances. `signals` are this rank's, for all ranks to learn of. When loss or norm is not
// finite the weights, moments and counters stay as they were, the state included.
StepResult train_step(Training& training, const SampleSource& source, const StopSignals* signals = nullptr);

// Collective. Blocks the host. Mean loss over the first `num_batches` global batches of a source.
double evaluate(Training& training, const SampleSource& source, int64_t num_batches);

// Collective. Blocks the host. Runs the forward passes of the step at training.state again, looking at every
// activation, and says on which rank, stage, layer and micro-batch the first value that is not finite appeared; when
// the forward passes are clean, names the first gradient that is not finite. The same text on all ranks.
std::string find_non_finite(Training& training, const SampleSource& source);

}  // namespace ashlar
