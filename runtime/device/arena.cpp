#include "runtime/device/arena.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace ashlar {

std::byte* Arena::take(size_t bytes) {
  const size_t start = used_;
  used_ += aligned(bytes);
  high_water_ = std::max(high_water_, used_);
  if (counting()) {
    return nullptr;
  }
  DCHECK(used_ <= capacity_, "arena of {} bytes asked for {}", capacity_, used_);
  return data_ + start;
}

void Arena::reset_to(size_t mark) {
  DCHECK(mark <= used_, "arena mark {} lies beyond its {} used bytes", mark, used_);
  used_ = mark;
}

}  // namespace ashlar
