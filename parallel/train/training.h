// Everything one rank holds while it trains, put together in the order of dependence, and the step that uses it.
#pragma once

#include <memory>
#include <vector>

#include "parallel/grid/process_grid.h"
#include "parallel/model/gpt.h"
#include "parallel/pipeline/executor.h"
#include "parallel/train/options.h"
#include "parallel/train/signals.h"
#include "parallel/train/step_results.h"
#include "parallel/zero/data_sync.h"
#include "parallel/zero/loss_scaler.h"
#include "parallel/zero/lr_schedule.h"
#include "parallel/zero/optimizer.h"
#include "runtime/data/batch.h"

namespace ashlar {

// Where a run stands. Data position, learning rate and random state are pure functions of it, so with the loss scaler's
// state it is all that a checkpoint needs beside tensors.
struct TrainState {
  int64_t iteration = 0;  // steps done
  int64_t consumed_samples = 0;
  // Of the steps whose results were taken:
  int64_t num_skipped = 0;  // updated nothing
  int64_t num_nan = 0;      // not finite in a way that a lower loss scale does not explain
};

// Pure. The type of weights and activations: bf16, fp16 or fp32.
DType compute_dtype(const TrainOptions& options);
// Pure. The model that resolved options describe.
GptConfig gpt_config(const TrainOptions& options, DType dtype = DType::kF32);
// Pure. One micro-batch, and how its rows lie on the tensor ranks.
BatchShape batch_shape(const TrainOptions& options);
GridShape grid_shape(const TrainOptions& options);
RankOrder rank_order(const TrainOptions& options);
Sharding sharding(const TrainOptions& options);

// Waits at its end until the stream is idle: an error may leave in the middle of a step, and what was made before this
// is in use by the device until then. A device that hangs is the watchdog's to end.
class IdleAtEnd {
 public:
  explicit IdleAtEnd(Stream& stream) : stream_(stream) {}
  ~IdleAtEnd();
  IdleAtEnd(const IdleAtEnd&) = delete;
  IdleAtEnd& operator=(const IdleAtEnd&) = delete;

 private:
  Stream& stream_;
};

class Training {
 public:
  // Collective. `options` are resolved (resolve_options). Initial weights are set from options.seed.
  Training(RankContext& rank, const TrainOptions& options);

  const TrainOptions options;
  const GptConfig config;
  RankContext& rank;
  const std::unique_ptr<Stream> stream;
  ProcessGrid grid;
  std::vector<std::unique_ptr<StageChunk>> chunks;  // this rank's stages
  ParameterStore store;
  DataSync sync;
  Executor executor;
  Optimizer optimizer;
  const LrSchedule lr_schedule;
  LossScaler loss_scaler;
  StepResults results;
  TrainState state;  // behind the last step that was put on the stream
  const IdleAtEnd idle_at_end;
};

enum class StepOutcome {
  kUpdated,
  kSkipped,      // fp16: gradients overflowed at this loss scale; nothing was updated, and the run goes on
  kNotFinite,    // the run must end: loss or gradients are not finite
  kScaleAtFloor  // the run must end: the last of too many kSkipped at a loss scale that cannot fall
};

// Pure.
inline bool must_end(StepOutcome outcome) {
  return outcome == StepOutcome::kNotFinite || outcome == StepOutcome::kScaleAtFloor;
}

struct StepResult {
  int64_t step = 0;              // 1 for the first
  int64_t consumed_samples = 0;  // behind it; before it when the run must end
  double loss = 0;               // mean over the counted targets of the global batch
  double grad_norm = 0;          // before clipping
  double learning_rate = 0;
  double num_targets = 0;  // counted in the global batch
  double loss_scale = 1;   // of the next step
  bool finite = true;      // loss and gradient norm
  StepOutcome outcome = StepOutcome::kUpdated;
  int stop_signal = 0;  // received by some rank before the step was put on the stream; 0: none
};

// Collective. Puts the passes of the step at training.state on the stream: forward and backward of all micro-batches of
// the global batch, gradients summed over data ranks and uses. Changes nothing but gradients.
void run_passes(Training& training, const SampleSource& source);

// Collective. Puts one optimizer step on the stream: forward and backward of all micro-batches of the global batch at
// training.state, gradients to sums over counted targets divided by their global count, clip, update; the state
// advances at once. On a GPU the host waits at most for the step before the last one. `signals` are this rank's, for
// all ranks to learn of.
void submit_step(Training& training, const SampleSource& source, const StopSignals* signals = nullptr);

// Collective. Blocks the host until the oldest submitted step is done. When its loss or norm is not finite (and
// options.check_for_nan_in_loss_and_grad), weights and moments are as before it: state and counters go back, and steps
// submitted behind it, which updated nothing, are forgotten. In fp16 a finite loss with gradients that are not is an
// overflow: weights, moments and the number of updates, which the learning rate follows, stay as before, iteration and
// samples move on, and the loss scale hears of it. Throws AgreedError(kData) when no target counted.
StepResult take_result(Training& training);

// Pure. How many submitted steps a loop leaves on their way when it takes results: on a GPU one, so that the device has
// work while the host reads; none on a CPU, in fp16, whose next loss scale depends on the step, and none where each
// step's weights are looked at (--check-weight-hash).
size_t result_lag(const Training& training);

// Collective. Blocks the host until the disk has taken offloaded state: behind the last step, so that what fails there
// is said by a run that has not yet called itself done.
void finish_state(Training& training);

// Collective. Blocks the host. One step and its result.
StepResult train_step(Training& training, const SampleSource& source, const StopSignals* signals = nullptr);

// Collective. Blocks the host. Mean loss over the first `num_batches` global batches of a source.
double evaluate(Training& training, const SampleSource& source, int64_t num_batches);

// Collective. Blocks the host. Runs the passes of the step at training.state again, looking at every activation, and
// says on which rank, stage, layer and micro-batch the first value that is not finite appeared; when all are clean,
// names the first gradient that is not finite. The same text on all ranks.
std::string find_non_finite(Training& training, const SampleSource& source);

}  // namespace ashlar
