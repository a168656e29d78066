// The stretches of global memory that a launch read or wrote, for whoever checks the order of streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ashlar::emu {

class TouchedRanges {
 public:
  struct Range {
    uintptr_t begin, end;
  };

  void add(uintptr_t begin, size_t bytes);
  // Ascending, neither overlapping nor adjoining.
  const std::vector<Range>& merged();
  void clear() { ranges_.clear(); }

 private:
  void merge();

  std::vector<Range> ranges_;
  size_t merge_at_ = 1024;
};

}  // namespace ashlar::emu
