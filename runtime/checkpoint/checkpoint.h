// Checkpoints by global name and index: each rank writes the slices it owns, any grid reads the slices it needs.
//
//   DIR/latest_checkpointed_iteration.txt   "120", moved last
//   DIR/iter_0000120/manifest.json          every tensor: dtype, global shape, and its slices (file, offset, place in
//                                           the tensor, xxHash of every block), plus the training state; its own hash
//                                           is in manifest.xxh3
//   DIR/iter_0000120/rank_00003.safetensors the slices written by rank 3
//
// A checkpoint appears whole or not at all: it is written under a temporary name (DIR/.iter_0000120.tmp), synced and
// renamed; the latest mark moves last. An older set of the same iteration steps aside first, to
// DIR/.iter_0000120.replaced, and is removed at the very end; a job killed in between leaves it there, and
// find_checkpoint moves it back.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/pieces.h"
#include "runtime/checkpoint/storage.h"
#include "runtime/comm/launch.h"
#include "runtime/tensor/shard_spec.h"
#include "runtime/tensor/tensor.h"

namespace ashlar {

enum class SliceUse { kRead, kWrite };

// A rank's slice of a named global tensor, or the part of it that this data rank holds. Padding of the shard is neither
// written nor read (it is set to zero on load).
struct NamedSlice {
  std::string name;  // "model/h.0.attn.c_attn.weight", "adam_m/...", "adam_v/..."
  ShardSpec shard;
  TensorView data;    // [shard.local()], or some of its elements: [n]; in the rank's device, no work on it is under way
  bool owned = true;  // exactly one rank owns each element of a tensor and writes it; the other holders only read
  int64_t begin = 0;  // the first of these elements in the slice, row-major, padding counted
  // For what is not always in memory: asked once, in the order of the slices, when this one is about to be read or
  // filled. Says where data lies until the next one is asked; `data` itself then has no memory.
  std::function<std::byte*(SliceUse)> bring = {};

  TensorView in_memory(SliceUse use) const { return bring ? TensorView{bring(use), data.dtype, data.shape} : data; }
  TensorPiece piece() const { return piece_of(shard, begin, data.num_elements()); }
};

struct SaveRequest {
  std::string directory;
  int64_t iteration = 0;
  std::span<const NamedSlice> slices;
  StorageOptions storage = {};                    // for tests: a disk that is slow or full
  uint64_t hash_block_bytes = uint64_t{4} << 20;  // what is read and checked at a time; a multiple of 8
};

// Collective. Blocks the host. What a job does before its first step, so that a bad --save is not found out after
// hours: creates the directory and writes a probe file into it (throws Error(kCheckpoint) when it cannot), and warns in
// the log when the disk has less room than one checkpoint of these slices.
void check_save_directory(RankContext& rank, const std::string& directory, std::span<const NamedSlice> slices);

// Collective. Blocks the host. On failure (unwritable, disk full, ...) every rank throws Error(kCheckpoint) with path,
// needed and free bytes; the previous checkpoint and the latest mark stay as they were. The state written is rank 0's.
void save_checkpoint(RankContext& rank, const SaveRequest& request, const nlohmann::json& state);

// Collective. Blocks the host. The iteration to go on from: the one that the latest mark names, or, when that one is
// missing or damaged, the newest that is whole (manifest, files, sizes). What is damaged is named in the log, with the
// reason, and skipped. Empty when there is none, or no such directory.
std::optional<int64_t> find_checkpoint(RankContext& rank, const std::string& directory);

// Collective. Blocks the host. Fills every slice by global name and index, whatever grid wrote it, and sets padding to
// zero; checks the hash of all it reads. A kind of tensor (what stands before the first '/': "model", "adam_m", ...) is
// read whole or not at all: a checkpoint with more tensors of a kind than the ranks ask for is of another model. Throws
// Error(kCheckpoint) on all ranks, naming file, tensor, expected and found, for a flipped byte, a missing slice,
// another shape or dtype, a missing or a left-over tensor; the slices are then half filled, and the job ends. Returns
// the state.
nlohmann::json load_checkpoint(RankContext& rank, const std::string& directory, int64_t iteration,
                               std::span<const NamedSlice> slices);

}  // namespace ashlar
