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
// file's, the order of elements is the same). Where `transposed`, what we hold is the slice's part of a local matrix of
// rows x columns, and the file has that matrix as columns x rows.
struct HfSlice {
  std::string name;
  Shape file_shape;
  ShardSpec shard;
  bool transposed = false;
  int64_t rows = 0;     // of our local matrix, all dims but the last: out
  int64_t columns = 0;  // in
  int64_t begin = 0;    // elements [begin, end) of our local slice
  int64_t end = 0;
};

// Pure.
HfSlice hf_slice(const NamedSlice& slice);

// Calls fn(position, global, length) for each run of a slice's elements that is contiguous in the file, padding left
// out: position counts within the slice's elements in the file's order, global within the file's tensor.
void for_each_file_run(const HfSlice& slice, const std::function<void(int64_t, int64_t, int64_t)>& fn);

// Copies the n = end - begin elements of a transposed slice from our order into the file's, and back.
void to_file_order(const HfSlice& slice, float* to, const float* from);
void from_file_order(const HfSlice& slice, float* to, const float* from);

// Collective. Throws Error(kCheckpoint) unless the slices of all ranks together are exactly the config's tensors, in
// its shapes. With `owned_only`, counts that the owned slices cover every element once.
void check_hf_slices(RankContext& rank, const HfConfig& config, std::span<const NamedSlice> slices, bool owned_only);

}  // namespace ashlar
