// Runs one rank's list of actions over its stage chunks. It knows no schedule by name: one walk, one switch.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "parallel/grid/process_grid.h"
#include "parallel/pipeline/pipeline_memory.h"
#include "parallel/schedule/schedule.h"

namespace ashlar {

// Loss over counted targets, of this rank's data coordinate, on the last stage; zeros elsewhere.
struct LossSum {
  double loss = 0;
  double num_targets = 0;
};

// What may look into a run: tests that inject faults, and the search for the first value that is not finite.
struct ExecutorHooks {
  std::function<void(const Action&)> before_action;
  ActivationHook on_activation;
  GradientHook on_gradients;
};

class Executor {
 public:
  // `training` and `evaluation` are lowered schedules over the pipeline axis; chunks are this rank's stages in
  // ascending order. Allocates all memory that the runs need. Throws kInternal when a schedule is invalid.
  Executor(RankContext& rank, const ProcessGrid& grid, Stream& stream, const Schedule& training,
           const Schedule& evaluation, std::vector<StageChunk*> chunks, const BatchShape& shape, ParamSync& sync);

  // Collective over the model group. Stream-ordered; on a GPU the host waits at most for the run before the last one,
  // whose micro-batches it overwrites. Allocates nothing. Gradients of the loss sum times `grad_scale` lie in the
  // parameters' grad tensors afterwards. `step` is for reports and, with `seed` and the samples consumed before this
  // step by all data ranks, decides what dropout drops.
  void train(const BatchReader& reader, double grad_scale, int64_t step, uint64_t seed = 0,
             int64_t consumed_samples = 0);
  // The same walk over the forward-only list.
  void evaluate(const BatchReader& reader, int64_t step);

  // [2] fp64: loss sum and counted targets of the last run, as in LossSum. Device memory.
  ConstTensorView totals() const { return totals_; }
  // Blocks the host until the last run is done.
  LossSum read_totals();

  void set_hooks(ExecutorHooks hooks) { hooks_ = std::move(hooks); }
  const ExecutorHooks& hooks() const { return hooks_; }
  const PipelineBytes& bytes() const { return bytes_; }

 private:
  // A list prepared for running: each action with its text and slot events.
  struct Step {
    Action action;
    std::string text;
    SlotEvents slots;
    bool joins_next = false;      // a transfer that goes out in one exchange with the transfer behind it
    size_t next_read = kNoLayer;  // the layer whose values a later pass of the same window reads first
  };
  struct Program {
    std::vector<Step> steps;
    int num_microbatches = 0;
  };
  // A chunk with its memory.
  struct Stage : StageMemory {
    StageChunk* chunk = nullptr;
    bool next_is_here = false;  // the neighbour stages live on this rank
    bool previous_is_here = false;
    int next_rank = 0;  // pipeline ranks of the neighbours
    int previous_rank = 0;
    std::array<SlotPool, 3> pools;           // by SlotKind
    std::vector<Work> receiving_activation;  // by activation slot
    std::vector<Work> sending_activation;
    std::vector<Work> receiving_gradient;  // by slot of output_gradients
    std::array<Work, 2> sending_gradient;
    int turn = 0;
  };

  Program prepare(const Schedule& schedule, bool forward_only);
  void find_next_reads(std::vector<Step>& steps);
  void allocate();
  void run_or_end_job(const Program& program, const BatchReader& reader, double grad_scale, bool training,
                      int64_t step);
  void run(const Program& program, const BatchReader& reader, double grad_scale, bool training, int64_t step);
  void settle() noexcept;  // Blocks the host until the device uses none of this one's memory.
  void sum_losses(const Program& program);
  void perform(const Step& at, const BatchReader& reader);
  Work& prepare_transfer(const Action& action);
  void forward(Stage& stage, const Step& at, const BatchReader& reader);
  void set_masks(int microbatch);
  void backward(Stage& stage, const Step& at);
  void take_slots(const std::vector<SlotEvent>& events);
  void release_slots(const std::vector<SlotEvent>& events);
  Stage& stage_of(int stage);
  bool reads_batches() const { return stages_.front().chunk->is_first() || stages_.back().chunk->is_last(); }
  int most_microbatches() const;

  RankContext& rank_;
  const ProcessGrid& grid_;
  Stream& stream_;
  const Schedule training_schedule_;
  const Schedule evaluation_schedule_;
  BatchShape shape_;
  ParamSync& sync_;
  ExecutorHooks hooks_;
  Program training_program_;
  Program evaluation_program_;
  std::vector<Stage> stages_;
  std::vector<int> stage_index_;  // by global stage, -1 when another rank owns it
  Buffer activations_;
  Buffer gradients_;
  Buffer workspace_buffer_;
  Arena workspace_;
  TensorView loss_sums_;  // [micro-batches] fp64
  TensorView totals_;     // [2] fp64
  Buffer host_buffer_;
  TensorView host_totals_;  // [2] fp64, pinned
  HostBatches host_batches_;
  std::vector<Transfer> legs_;    // of the exchange that is being put together
  std::vector<Work*> leg_works_;  // where each leg's work is waited for
  PipelineBytes bytes_;
  int64_t consumed_samples_ = 0;
  std::unique_ptr<LayerContext> context_;
};

}  // namespace ashlar
