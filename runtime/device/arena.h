// A bump allocator over one buffer, and its planning twin that only counts. Code that lays memory out runs twice
// through the same function, once with a counting arena and once with a real one, so the plan and the peak are one
// number.
#pragma once

#include <cstddef>

namespace ashlar {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  Arena() = default;  // counts only; data pointers are null
  Arena(std::byte* data, size_t capacity) : data_(data), capacity_(capacity) {}

  // The next `bytes` of the buffer, 64-byte aligned; nullptr from a counting arena. Throws when the buffer is full.
  std::byte* take(size_t bytes);

  size_t used() const { return used_; }
  size_t high_water() const { return high_water_; }
  size_t capacity() const { return capacity_; }
  bool counting() const { return data_ == nullptr; }

  // Stack use: `mark` before, `reset_to` after.
  size_t mark() const { return used_; }
  void reset_to(size_t mark);
  void reset() { reset_to(0); }

  static constexpr size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

 private:
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
  size_t high_water_ = 0;
};

}  // namespace ashlar
