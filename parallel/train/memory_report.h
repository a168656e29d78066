// What the plan of a run said beside what its ranks took.
#pragma once

#include <string>

#include "parallel/plan/memory.h"
#include "parallel/train/training.h"
#include "runtime/metrics/metrics.h"

namespace ashlar {

// Of the rank that held most device memory at once, the first of equals.
struct MemoryReport {
  int world_rank = 0;
  int stage = 0;
  int64_t num_parameters = 0;  // values of that rank
  RankMemory planned;
  MemoryUses device;
  MemoryUses host;
  int64_t disk_bytes = 0;
};

// Of this rank's files of offloaded state and weights.
int64_t disk_bytes(const Training& training);

// Collective over the world. Blocks the host. The same on every rank.
MemoryReport gather_memory_report(const Training& training);

// Pure. A line for each kind of memory that was planned or taken: planned, at most taken, and how far apart. Without a
// line end.
std::string memory_report_text(const MemoryReport& report);
// Pure. For the metrics file.
MemoryMetrics memory_metrics(const MemoryReport& report, int64_t step);

}  // namespace ashlar
