#include "tests/emulation/emu/touched.h"

#include <algorithm>

namespace ashlar::emu {

void TouchedRanges::add(uintptr_t begin, size_t bytes) {
  const uintptr_t end = begin + bytes;
  if (!ranges_.empty() && begin <= ranges_.back().end && end >= ranges_.back().begin) {  // most threads go along
    ranges_.back() = {std::min(begin, ranges_.back().begin), std::max(end, ranges_.back().end)};
    return;
  }
  ranges_.push_back({begin, end});
  if (ranges_.size() >= merge_at_) {
    merge();
    merge_at_ = std::max<size_t>(1024, 2 * ranges_.size());
  }
}

const std::vector<TouchedRanges::Range>& TouchedRanges::merged() {
  merge();
  return ranges_;
}

void TouchedRanges::merge() {
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  size_t kept = 0;
  for (const Range& range : ranges_) {
    if (kept > 0 && range.begin <= ranges_[kept - 1].end) {
      ranges_[kept - 1].end = std::max(ranges_[kept - 1].end, range.end);
    } else {
      ranges_[kept++] = range;
    }
  }
  ranges_.resize(kept);
}

}  // namespace ashlar::emu
