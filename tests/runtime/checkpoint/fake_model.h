// Tensors whose every byte follows from name, iteration and global index, so that any rank of any grid can tell whether
// it got the right ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace ashlar {

class FakeModel {
 public:
  // How the tensors are laid over ranks. kPlain as a tensor-parallel job does; kTurned splits other dims; kShared as
  // data ranks do that share out what two tensor ranks hold (one, for an odd number of ranks): each has two ranges.
  enum class Grid { kPlain, kTurned, kShared };

  FakeModel(int rank, int num_ranks, Grid grid = Grid::kPlain);
  FakeModel(const FakeModel&) = delete;
  FakeModel& operator=(const FakeModel&) = delete;

  std::vector<NamedSlice>& slices() { return slices_; }
  void fill(uint64_t iteration);  // what the job holds then; padding gets a pattern that must not reach a file
  void scribble();                // something else in every byte
  std::string difference(uint64_t iteration) const;  // empty: every element is right and all padding is zero

 private:
  void add(const std::string& name, DType dtype, ShardSpec shard, bool owned);
  void add_range(const std::string& name, DType dtype, const ShardSpec& shard, bool owned, int64_t begin, int64_t end);
  static void element(const NamedSlice& slice, uint64_t iteration, int64_t index, std::byte* out);

  int data_rank_ = 0;
  int num_data_ranks_ = 1;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<NamedSlice> slices_;
};

}  // namespace ashlar
