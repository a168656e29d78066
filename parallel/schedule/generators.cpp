#include <algorithm>
#include <cctype>
#include <numeric>

#include "parallel/schedule/schedule.h"
#include "runtime/base/error.h"

namespace ashlar {
namespace {

struct NamedGenerator {
  const char* name;
  Schedule (*make)(int num_ranks, int num_microbatches);
};

constexpr NamedGenerator kGenerators[] = {{"gpipe", make_gpipe}, {"1f1b", make_one_f_one_b}};

// Stage r on rank r, all lists empty.
Schedule one_stage_per_rank(const std::string& name, int num_ranks, int num_microbatches) {
  REQUIRE(num_ranks >= 1, ErrorCode::kUsage, "schedule {}: --pipeline-model-parallel-size must be at least 1, got {}",
          name, num_ranks);
  REQUIRE(num_microbatches >= 1, ErrorCode::kUsage,
          "schedule {}: a step needs at least 1 micro-batch, got {}; --global-batch-size must be at least "
          "--micro-batch-size times the data-parallel size",
          name, num_microbatches);
  Schedule schedule;
  schedule.name = name;
  schedule.num_microbatches = num_microbatches;
  schedule.stage_to_rank.resize(static_cast<size_t>(num_ranks));
  std::iota(schedule.stage_to_rank.begin(), schedule.stage_to_rank.end(), 0);
  schedule.actions.resize(static_cast<size_t>(num_ranks));
  return schedule;
}

}  // namespace

Schedule make_gpipe(int num_ranks, int num_microbatches) {
  Schedule schedule = one_stage_per_rank("gpipe", num_ranks, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::vector<Action>& list = schedule.actions[static_cast<size_t>(rank)];
    for (int m = 0; m < num_microbatches; ++m) list.push_back({ActionKind::kForward, rank, m});
    // The paper runs the backward passes in reverse; ascending order keeps the weight gradients' order of summation,
    // and with it the bits, the same for every schedule, at the same bubble.
    for (int m = 0; m < num_microbatches; ++m) list.push_back({ActionKind::kBackward, rank, m});
  }
  return schedule;
}

Schedule make_one_f_one_b(int num_ranks, int num_microbatches) {
  Schedule schedule = one_stage_per_rank("1f1b", num_ranks, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::vector<Action>& list = schedule.actions[static_cast<size_t>(rank)];
    // One forward for every stage behind this one fills the pipeline; from then on every forward is paid by a backward.
    const int num_warmup = std::min(num_ranks - 1 - rank, num_microbatches);
    for (int m = 0; m < num_warmup; ++m) list.push_back({ActionKind::kForward, rank, m});
    for (int m = num_warmup; m < num_microbatches; ++m) {
      list.push_back({ActionKind::kForward, rank, m});
      list.push_back({ActionKind::kBackward, rank, m - num_warmup});
    }
    for (int m = num_microbatches - num_warmup; m < num_microbatches; ++m) {
      list.push_back({ActionKind::kBackward, rank, m});
    }
  }
  return schedule;
}

Schedule make_forward_only(int num_ranks, int num_microbatches) {
  Schedule schedule = one_stage_per_rank("forward-only", num_ranks, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (int m = 0; m < num_microbatches; ++m) {
      schedule.actions[static_cast<size_t>(rank)].push_back({ActionKind::kForward, rank, m});
    }
  }
  return schedule;
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const NamedGenerator& generator : kGenerators) names.emplace_back(generator.name);
  return names;
}

Schedule make_schedule(const std::string& name, int num_ranks, int num_microbatches) {
  std::string lower_case = name;  // "1F1B" is how papers write it
  std::transform(lower_case.begin(), lower_case.end(), lower_case.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const NamedGenerator& generator : kGenerators) {
    if (lower_case == generator.name) return generator.make(num_ranks, num_microbatches);
  }
  throw Error(ErrorCode::kUsage, fmt::format("--pipeline-schedule {}: no such schedule; known: {}", name,
                                             fmt::join(schedule_names(), ", ")));
}

}  // namespace ashlar
