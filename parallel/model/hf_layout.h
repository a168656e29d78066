// Where our tensors lie in a Hugging Face GPT-2 file. Pure index arithmetic.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel/model/hf_gpt2.h"

namespace ashlar {

// Pure. Our name without the "model/" of checkpoints.
std::string hf_base_name(const std::string& name);

// Pure. Every tensor of the model under our name, with its shape in the file.
std::map<std::string, Shape> hf_shapes(const HfConfig& config);

// One of our slices, as the file sees it: `shard` is a shard of the file's tensor (its dims may be finer than the
// file's, the order of elements is the same), and a local matrix of rows x columns has to be transposed in between.
struct HfSlice {
  std::string name;
  Shape file_shape;
  ShardSpec shard;
  bool transposed = false;
  int64_t rows = 0;     // of our local matrix, all dims but the last: out
  int64_t columns = 0;  // in
};

// Pure.
HfSlice hf_slice(const NamedSlice& slice);

// Collective. Throws Error(kCheckpoint) unless the slices of all ranks together are exactly the config's tensors, in
// its shapes. With `owned_only`, counts that the owned slices cover every element once.
void check_hf_slices(RankContext& rank, const HfConfig& config, std::span<const NamedSlice> slices, bool owned_only);

// Pure. to[c][r] = from[r][c], in square tiles so that both sides stay in the cache.
void transpose(float* to, const float* from, int64_t rows, int64_t columns);

}  // namespace ashlar
