#include "kernels/cpu/embedding.h"

#include <algorithm>

#include "kernels/cpu/loops.h"

namespace ashlar::kernels::cpu {

template <typename T>
void embedding_forward(T* y, const int32_t* tokens, const T* table, int64_t num_tokens, int64_t columns,
                       int64_t vocab_begin, int64_t num_valid) {
#pragma omp parallel for schedule(static) if (num_tokens * columns > kBlock)
  for (int64_t n = 0; n < num_tokens; ++n) {
    const int64_t row = tokens[n] - vocab_begin;
    if (row >= 0 && row < num_valid) {
      std::copy_n(table + row * columns, columns, y + n * columns);
    } else {
      std::fill_n(y + n * columns, columns, T{});
    }
  }
}

// One thread owns a block of columns and takes the tokens in ascending order, so a row that several tokens share is
// summed in one order whatever the number of threads.
template <typename T>
void embedding_backward(Compute<T>* dtable, const T* dy, const int32_t* tokens, int64_t num_tokens, int64_t columns,
                        int64_t vocab_begin, int64_t num_valid) {
  constexpr int64_t kColumns = 256;
#pragma omp parallel for schedule(static) if (num_tokens * columns > kBlock)
  for (int64_t begin = 0; begin < columns; begin += kColumns) {
    const int64_t width = std::min(kColumns, columns - begin);
    for (int64_t n = 0; n < num_tokens; ++n) {
      const int64_t row = tokens[n] - vocab_begin;
      if (row < 0 || row >= num_valid) {
        continue;
      }
      Compute<T>* to = dtable + row * columns + begin;
      const T* from = dy + n * columns + begin;
#pragma GCC ivdep
      for (int64_t c = 0; c < width; ++c) {
        to[c] += widen(from[c]);
      }
    }
  }
}

template <typename T>
void position_forward(T* y, const T* table, int64_t rows, int64_t columns, const SampleRows& place) {
#pragma omp parallel for schedule(static) if (rows * columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    T* to = y + row * columns;
    const T* from = table + (place.first + row) % place.length * columns;
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) {
      to[c] = narrow<T>(widen(to[c]) + widen(from[c]));
    }
  }
}

template <typename T>
void position_backward(Compute<T>* dtable, const T* dy, int64_t rows, int64_t table_length, int64_t columns,
                       const SampleRows& place, bool add) {
  constexpr int64_t kColumns = 256;
#pragma omp parallel for schedule(static) if (rows * columns > kBlock)
  for (int64_t t = 0; t < place.length; ++t) {
    const int64_t first = (t + place.length - place.first % place.length) % place.length;
    if (add && first >= rows) {
      continue;
    }
    for (int64_t begin = 0; begin < columns; begin += kColumns) {
      const int64_t width = std::min(kColumns, columns - begin);
      Compute<T> sum[kColumns] = {};
      for (int64_t row = first; row < rows; row += place.length) {
        const T* from = dy + row * columns + begin;
        for (int64_t c = 0; c < width; ++c) {
          sum[c] += widen(from[c]);
        }
      }
      Compute<T>* to = dtable + t * columns + begin;
      for (int64_t c = 0; c < width; ++c) {
        to[c] = add ? to[c] + sum[c] : sum[c];
      }
    }
  }
  if (!add) {
    std::fill(dtable + place.length * columns, dtable + table_length * columns, Compute<T>{0});
  }
}

#define INSTANTIATE(T)                                                                                         \
  template void embedding_forward(T*, const int32_t*, const T*, int64_t, int64_t, int64_t, int64_t);           \
  template void embedding_backward(Compute<T>*, const T*, const int32_t*, int64_t, int64_t, int64_t, int64_t); \
  template void position_forward(T*, const T*, int64_t, int64_t, const SampleRows&);                           \
  template void position_backward(Compute<T>*, const T*, int64_t, int64_t, int64_t, const SampleRows&, bool)
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace ashlar::kernels::cpu
