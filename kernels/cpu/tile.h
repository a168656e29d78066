// Products of small blocks that sit in cache: the inner loop of attention and of the plain matrix product. oneDNN's
// sgemm allocates about 4 MB a call and its start-up costs more than a block of 64 x 64.
//
// A register tile of c, kTileRows x (up to 2 vectors), stays in registers while k runs. Element (m, k) of a is
// a[m * a_row + k * a_col], so a may be stored either way round; rows of b and c are whole, aligned vectors.
#pragma once

#include <cstdint>

namespace ashlar::kernels::cpu {

// Widest vector of the target: 64 bytes with AVX-512, 32 with AVX, else 16. The compiler predefines it.
inline constexpr int kVectorBytes = __BIGGEST_ALIGNMENT__ > 64 ? 64 : __BIGGEST_ALIGNMENT__;
template <typename T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
// 8 x 2 accumulators fit the 32 registers of AVX-512, 4 x 2 the 16 of AVX and SSE.
inline constexpr int kTileRows = kVectorBytes == 64 ? 8 : 4;
// Alignment of every buffer that vectors are loaded from.
inline constexpr int kBlockAlignment = 64;

constexpr int round_up(int n, int multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
// Smallest row length >= n that is whole vectors.
template <typename T>
constexpr int padded_columns(int n) {
  return round_up(n, kLanes<T>);
}

template <typename T>
struct VectorType {
  using type __attribute__((vector_size(kVectorBytes))) = T;
};
template <typename T>
using Vector = typename VectorType<T>::type;

template <typename T>
Vector<T>& vector_at(T* p) {
  return *reinterpret_cast<Vector<T>*>(p);
}
template <typename T>
const Vector<T>& vector_at(const T* p) {
  return *reinterpret_cast<const Vector<T>*>(p);
}

// c [kRows, kVectors * lanes] = or += a [kRows, depth] b [depth, kVectors * lanes].
template <typename T, int kRows, int kVectors>
inline void register_tile(T* c, int64_t c_row, const T* a, int64_t a_row, int64_t a_col, const T* b, int64_t b_row,
                          int depth, bool accumulate) {
  Vector<T> sum[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v) {
      sum[m][v] = accumulate ? vector_at(c + m * c_row + v * kLanes<T>) : Vector<T>{};
    }
  }
  for (int k = 0; k < depth; ++k) {
    Vector<T> b_vectors[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      b_vectors[v] = vector_at(b + v * kLanes<T>);
    }
    for (int m = 0; m < kRows; ++m) {
      for (int v = 0; v < kVectors; ++v) {
        sum[m][v] += a[m * a_row] * b_vectors[v];
      }
    }
    a += a_col;
    b += b_row;
  }
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v) {
      vector_at(c + m * c_row + v * kLanes<T>) = sum[m][v];
    }
  }
}

template <typename T, int kVectors>
inline void register_columns(T* c, int64_t c_row, int rows, const T* a, int64_t a_row, int64_t a_col, const T* b,
                             int64_t b_row, int depth, bool accumulate) {
  int m = 0;
  for (; m + kTileRows <= rows; m += kTileRows) {
    register_tile<T, kTileRows, kVectors>(c + m * c_row, c_row, a + m * a_row, a_row, a_col, b, b_row, depth,
                                          accumulate);
  }
  for (; m < rows; ++m) {
    register_tile<T, 1, kVectors>(c + m * c_row, c_row, a + m * a_row, a_row, a_col, b, b_row, depth, accumulate);
  }
}

// Pure. c [rows, columns] = or += a [rows, depth] b [depth, columns]; columns and the row strides of b and c are
// multiples of kLanes<T>. Every element is summed in ascending k. Two vectors of columns of b stay in the first-level
// cache while all rows of a pass by.
template <typename T>
void block_product(T* c, int64_t c_row, int rows, int columns, const T* a, int64_t a_row, int64_t a_col, const T* b,
                   int64_t b_row, int depth, bool accumulate) {
  constexpr int kStep = 2 * kLanes<T>;
  int n = 0;
  for (; n + kStep <= columns; n += kStep) {
    register_columns<T, 2>(c + n, c_row, rows, a, a_row, a_col, b + n, b_row, depth, accumulate);
  }
  if (n < columns) {
    register_columns<T, 1>(c + n, c_row, rows, a, a_row, a_col, b + n, b_row, depth, accumulate);
  }
}

}  // namespace ashlar::kernels::cpu
