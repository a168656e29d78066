// --memory-limit-gb: a run that would not fit does not start.
#pragma once

#include <optional>
#include <string>

#include "parallel/plan/run_shape.h"
#include "parallel/train/options.h"

namespace ashlar {

// One GB of --memory-limit-gb.
inline constexpr double kBytesOfGb = 1e9;

// Flags that make a run fit, and what it needs with them.
struct MemoryChange {
  std::string flags;  // "--micro-batch-size 2 --bf16"
  int64_t bytes = 0;  // of the fullest rank
};

// Pure. The cheapest change of resolved options under which every rank fits into `limit_bytes`; the global batch stays.
// The grid stays if it can, else more tensor or pipeline ranks of as many ranks in all, at last more ranks (the fewest
// of each). On a grid fewer flags are cheaper, and of as many: 1f1b, a smaller micro-batch (whose products run less
// well), --bf16 (which rounds). Nothing when none of these fits.
std::optional<MemoryChange> cheapest_fit(const TrainOptions& options, const DeviceRequest& device, int64_t limit_bytes);

// Pure. Throws Error(kUsage) with the table, the largest item and the cheapest change when a rank of the run needs more
// than --memory-limit-gb. To be called alike on all ranks, before anything is allocated.
void check_memory_limit(const TrainOptions& options, const DeviceRequest& device);

}  // namespace ashlar
