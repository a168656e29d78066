// --memory-limit-gb: a run that would not fit does not start.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/plan/run_shape.h"
#include "parallel/train/options.h"

namespace ashlar {

// One GB of --memory-limit-gb.
inline constexpr double kBytesOfGb = 1e9;

// Flags that make a run fit, and what it needs with them.
struct MemoryChange {
  std::string flags;                  // "--micro-batch-size 2 --bf16"
  std::vector<std::string> left_out;  // flags of the run that must not stand beside these: "--recompute-activations"
  int64_t bytes = 0;                  // of the fullest rank

  std::string text() const;  // "--recompute-granularity full without --recompute-activations"
};

// Pure. The cheapest change of resolved options under which every rank fits into `limit_bytes`; the global batch stays,
// and the options with these flags in place of their own are legal. The grid stays if it can, else more tensor or
// pipeline ranks of as many ranks in all, at last more ranks (the fewest of each). On a grid costs add up:
//   1   --pipeline-schedule 1f1b       the bubble of gpipe
//   2   --zero-stage 1                 the traffic of stage 0
//   2   --sequence-parallel            other collectives, where there are tensor ranks
//   3   --recompute-granularity selective: norms and activations again
//   3   without --grad-reduce-in-bf16  twice the traffic of gradients
//   4   --num-distributed-optimizer-instances 1: traffic that stayed within a group
//   5   --zero-stage 2                 gradients travel with each micro-batch
//   5   --grad-reduce micro-batch      the same, where it was switched off
//   12+ --micro-batch-size, 4 more for each size passed over: smaller products run less well
//   20  --zero-stage 3                 values travel with each pass
//   30  --recompute-granularity full   a third of the arithmetic more
//   100 --bf16                         other numbers
//   300 --offload-optimizer-device cpu: beside a GPU, the update waits for copies and the host
//   400 --offload-optimizer-device nvme: it waits for a disk
// Nothing when none of these fits.
std::optional<MemoryChange> cheapest_fit(const TrainOptions& options, const DeviceRequest& device, int64_t limit_bytes);

// Pure. Throws Error(kUsage) with the table, the largest item and the cheapest change when a rank of the run needs more
// than --memory-limit-gb; without the table where it was just shown. To be called alike on all ranks, before anything
// is allocated.
enum class TableIs { kNew, kShown };
void check_memory_limit(const TrainOptions& options, const DeviceRequest& device, TableIs table = TableIs::kNew);

}  // namespace ashlar
