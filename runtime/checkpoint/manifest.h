// The table of contents of one checkpoint: which file holds which block of which global tensor, with a hash of each.
//
//   manifest.json    {"format": "ashlar checkpoint", "version": 2, "iteration": 120, "num_ranks": 8, "state": {...},
//                     "hash_block_bytes": 4194304,
//                     "files":   {"rank_00003.safetensors": {"bytes": 4096, "header_bytes": 512,
//                                                            "header_hash": "<hex>"}},
//                     "tensors": {"model/wte.weight": {"dtype": "F32", "shape": [512,64], "split_dim": 0, "slices":
//                         [{"file": "rank_00003.safetensors", "offset": 512, "start": 0, "size": 256, "begin": 0,
//                           "end": 16384, "hashes": ["<hex>"]}]}}}
//   manifest.xxh3    "XXH3 (manifest.json) = <16 hex digits>", which `xxhsum --check` understands
//
// Version 1 had whole slices ("begin" and "end" missing) with one "hash" each; it is still read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/shape.h"
#include "runtime/checkpoint/pieces.h"
#include "runtime/checkpoint/storage.h"

namespace ashlar {

struct StoredFile {
  uint64_t bytes = 0;
  uint64_t header_bytes = 0;
  uint64_t header_hash = 0;
};

// Of what lies at [start, start + size) along the tensor's split dim, row-major and without padding, the elements
// [begin, end).
struct StoredSlice {
  std::string file;
  uint64_t offset = 0;  // of its first byte, from the start of the file
  int64_t start = 0;
  int64_t size = 0;
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<uint64_t> hashes = {};  // hash_bytes of each block
};

struct StoredTensor {
  DType dtype = DType::kF32;
  Shape shape;         // global
  int split_dim = -1;  // -1: start and size of its slices are 0
  std::vector<StoredSlice> slices;

  uint64_t slice_bytes(const StoredSlice& slice) const;
  TensorPiece piece(const StoredSlice& slice) const;
};

struct Manifest {
  int64_t iteration = 0;
  int num_ranks = 0;
  nlohmann::json state;
  uint64_t hash_block_bytes = UINT64_MAX;  // slices are hashed in blocks of this size; version 1: each in one
  std::map<std::string, StoredFile> files;
  std::map<std::string, StoredTensor> tensors;
};

// Pure. Text round trip; `place` names the source in errors, which are Error(kCheckpoint).
std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(const std::string& text, const std::string& place);

// Adds another rank's files and slices. Throws when the two disagree about a tensor.
void merge_manifest(Manifest& into, const Manifest& other, const std::string& place);

// Pure. What a save puts down for a slice whose bytes are these.
std::vector<uint64_t> hash_blocks(const std::byte* data, uint64_t bytes, uint64_t block_bytes);

// Sorts the slices and throws Error(kCheckpoint) unless those of each tensor cover it exactly once and lie within their
// files.
void check_manifest(Manifest& manifest, const std::string& place);

// Blocks the host. Writes manifest.json and manifest.xxh3 into the directory.
void write_manifest(Storage& storage, const std::filesystem::path& directory, const Manifest& manifest);

// Blocks the host. Reads the manifest of an iteration and checks hash, contents, and that all its files are there with
// their sizes. Throws Error(kCheckpoint) that says what is damaged.
Manifest read_manifest(const std::filesystem::path& directory, int64_t iteration);

}  // namespace ashlar
