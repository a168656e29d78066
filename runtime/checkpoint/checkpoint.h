// Checkpoints by global name and index: each rank writes the slices it owns, any grid reads the slices it needs.
//
//   DIR/latest_checkpointed_iteration.txt   "120", moved last
//   DIR/iter_0000120/manifest.json          every tensor: dtype, global shape, and its slices (file, offset, start,
//   size,
//                                           xxHash), plus the training state
//   DIR/iter_0000120/rank_00003.safetensors the slices written by rank 3
//
// A checkpoint appears whole or not at all: it is written under a temporary name, synced, renamed; the latest mark
// moves last.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/launch.h"
#include "runtime/tensor/shard_spec.h"
#include "runtime/tensor/tensor.h"

namespace ashlar {

// A rank's slice of a named global tensor. Padding of the shard is neither written nor read (it is set to zero on
// load).
struct NamedSlice {
  std::string name;  // "model/h.0.attn.c_attn.weight", "adam_m/...", "adam_v/..."
  ShardSpec shard;
  TensorView data;    // [shard.local()], host memory
  bool owned = true;  // exactly one rank owns each slice of a tensor and writes it; the other holders only read
};

struct SaveRequest {
  std::string directory;
  int64_t iteration = 0;
  std::span<const NamedSlice> slices;
};

// Collective. Blocks the host. On failure (unwritable, disk full, ...) every rank throws Error(kCheckpoint) with path,
// needed and free bytes; the previous checkpoint and the latest mark stay as they were.
void save_checkpoint(RankContext& rank, const SaveRequest& request, const nlohmann::json& state);

// Collective. Blocks the host. The newest complete iteration in the directory, after checking it is whole (manifest,
// files, sizes); incomplete or damaged ones are named in the log and skipped. Empty when there is none.
std::optional<int64_t> find_checkpoint(RankContext& rank, const std::string& directory);

// Collective. Blocks the host. Fills every slice by global name and index, whatever grid wrote it; checks the hash of
// all it reads. Throws Error(kCheckpoint) naming file, tensor, expected and found for a flipped byte, a missing slice,
// another shape or a missing tensor; nothing is half loaded then: the job ends. Returns the state.
nlohmann::json load_checkpoint(RankContext& rank, const std::string& directory, int64_t iteration,
                               std::span<const NamedSlice> slices);

}  // namespace ashlar
