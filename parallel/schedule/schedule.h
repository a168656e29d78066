// A schedule is data: one list of actions per pipeline rank. Generators make the compute actions, lowering adds
// transfers and gradient reduction, and validator, simulator, renderer, memory planner and executor read the same
// lists.
#pragma once

#include <string>
#include <vector>

#include "parallel/schedule/action.h"

namespace ashlar {

struct Schedule {
  std::string name;  // for messages only; nothing decides by it
  int num_microbatches = 0;
  std::vector<int> stage_to_rank;            // pipeline rank that owns each stage
  std::vector<std::vector<Action>> actions;  // [pipeline rank][position]

  int num_stages() const { return static_cast<int>(stage_to_rank.size()); }
  int num_ranks() const { return static_cast<int>(actions.size()); }
};

// Generators. Pure. Compute actions only, one stage per rank.
Schedule make_gpipe(int num_ranks, int num_microbatches);        // Huang et al., arXiv:1811.06965, figure 2c
Schedule make_one_f_one_b(int num_ranks, int num_microbatches);  // Narayanan et al., arXiv:2104.04473, figure 4 (top)

// Pure. The generator with the name of --pipeline-schedule; throws Error(kUsage) listing the names.
Schedule make_schedule(const std::string& name, int num_ranks, int num_microbatches);
std::vector<std::string> schedule_names();

// A schedule that only runs the forward actions, for validation loss. Pure. Compute actions only.
Schedule make_forward_only(int num_ranks, int num_microbatches);

// Pure. Joins every "sIk, sWk" that stand next to each other into "sBk": a full backward needs no weight-gradient slot.
Schedule merge_backward(const Schedule& schedule);

enum class GradReduce {
  kNone,
  kStep,        // REDUCE_GRAD once, behind a stage's last weight gradient
  kMicroBatch,  // "REDUCE_GRADk" behind each weight gradient, before the stage's next
};

struct LoweringOptions {
  GradReduce grad_reduce = GradReduce::kStep;
  bool shard_windows = false;   // F, B and I of a stage between UNSHARD and RESHARD
  bool weight_windows = false;  // with shard_windows: W too, where weight passes read values
};

// Pure. Adds SEND/RECV between stages on different ranks (receives placed by the order of the sender's sends, so both
// sides pair in the same order; a receive stands directly before the action that needs it or earlier, where that order
// asks for it), REDUCE_GRAD and windows. Stages on the same rank hand over in memory and need no transfer. Nothing
// comes between transfers that have no compute action between them: a window opens directly before its first action
// and closes directly behind its last, the next one of the stage when nothing else stands between the two; and a
// reduction stands behind the transfers.
Schedule lower(const Schedule& schedule, const LoweringOptions& options = {});

// Pure. Empty = valid; otherwise what is wrong and where, one line each. Checks a lowered or compute-only schedule:
// every stage has F of every micro-batch once and B (or I and W) once, unless no stage has any; losses (F), input
// gradients (B, I) and weight gradients (B, W) each in ascending micro-batch order; F before B and I before W;
// stage-to-rank placement; transfers pair and their order agrees on both sides; no deadlock when a send never waits and
// a compute action waits for its receive; REDUCE_GRAD nowhere, or once per stage after its last weight gradient, or
// once per stage and micro-batch between that one's weight gradient and the next; F, B and I inside UNSHARD .. RESHARD
// where a stage has them, at most one of these windows open on a rank.
std::vector<std::string> validate(const Schedule& schedule);

// Pure. Largest number of micro-batches of a stage that are alive at once: from RECV_F (or F) until the last compute
// action on it, which is B or W, and F itself where there is no backward.
int max_live_microbatches(const Schedule& schedule, int stage);
// Pure. Largest number of micro-batches of a stage between I and W; 0 when the stage has only full B.
int max_pending_weight_grads(const Schedule& schedule, int stage);

}  // namespace ashlar
