// How the rows of a norm lie in registers: in those of one warp, or of several for wide rows.
#pragma once

#include "kernels/cuda/layernorm.h"
#include "kernels/cuda/pack.cuh"

namespace ashlar::kernels::cuda {

// kValues_ columns per thread of kWarps warps. Narrow rows share a block. The shape is the same for all elements, so
// that scratch and the order of sums are.
template <typename T_, int kValues_, int kWarps_>
struct RowShape {
  using T = T_;
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kPacks = kValues_ / kPack;  // per thread
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kColumns = kValues_ * kThreads;
  static constexpr int kRows = kWarps == 1 ? 4 : 1;  // per block
  // Whether 128 registers hold two rows beside two rows of fp32 sums.
  static constexpr bool kKeepsTwo = kValues_ * sizeof(T) <= 64;
  static DEVICE_INLINE int column(int pack) { return (pack * kThreads + static_cast<int>(threadIdx.x)) * kPack; }
};

// Calls function(RowShape{}) with the smallest shape that holds the columns. On the host.
template <typename T, typename Function>
void with_row_shape(int64_t columns, Function function) {
  check_limit("layernorm", "columns", columns, kMaxLayernormColumns, "--hidden-size");
  if (columns <= RowShape<T, 8, 1>::kColumns) {
    function(RowShape<T, 8, 1>{});
  } else if (columns <= RowShape<T, 16, 1>::kColumns) {
    function(RowShape<T, 16, 1>{});
  } else if (columns <= RowShape<T, 16, 2>::kColumns) {
    function(RowShape<T, 16, 2>{});
  } else if (columns <= RowShape<T, 16, 4>::kColumns) {
    function(RowShape<T, 16, 4>{});
  } else if (columns <= RowShape<T, 16, 8>::kColumns) {
    function(RowShape<T, 16, 8>{});
  } else if (columns <= RowShape<T, 16, 16>::kColumns) {
    function(RowShape<T, 16, 16>{});
  } else {
    static_assert(RowShape<T, 24, 16>::kColumns == kMaxLayernormColumns);
    function(RowShape<T, 24, 16>{});
  }
}

}  // namespace ashlar::kernels::cuda
