// The two loop forms of the CPU kernels. Both give the same bits for any number of threads: work is cut into fixed
// pieces, and a sum over a range is kept in a fixed number of lanes that meet in a fixed tree.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ashlar::kernels::cpu {

// Elements per piece of an elementwise loop; also the size from which a loop over rows is worth a second thread.
inline constexpr int64_t kBlock = 16384;

// Calls body(begin, end) for every piece of [0, n).
template <typename Body>
void for_blocks(int64_t n, Body body) {
  const int64_t num_blocks = (n + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static) if (num_blocks > 1)
  for (int64_t block = 0; block < num_blocks; ++block) {
    body(block * kBlock, std::min(n, (block + 1) * kBlock));
  }
}

// Combines value(0) .. value(n - 1): lane l takes l, l + kLanes, ...; then halves are folded onto each other. Two
// vectors' worth of lanes hide the latency of the addition.
template <typename T, typename Value, typename Combine>
inline T reduce_lanes(int64_t n, T start, Value value, Combine combine) {
  constexpr int64_t kLanes = 128 / sizeof(T);
  T lanes[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) {
    lanes[l] = start;
  }
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      lanes[l] = combine(lanes[l], value(i + l));
    }
  }
  for (int64_t l = 0; i + l < n; ++l) {
    lanes[l] = combine(lanes[l], value(i + l));
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width; ++l) {
      lanes[l] = combine(lanes[l], lanes[l + width]);
    }
  }
  return lanes[0];
}

template <typename T, typename Value>
inline T sum_lanes(int64_t n, Value value) {
  return reduce_lanes(n, T{0}, value, [](T a, T b) { return a + b; });
}

// The largest of start and the values; a NaN among the values is passed over.
template <typename T, typename Value>
inline T max_lanes(int64_t n, T start, Value value) {
  return reduce_lanes(n, start, value, [](T a, T b) { return b > a ? b : a; });
}

}  // namespace ashlar::kernels::cpu
