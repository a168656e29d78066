// Compiled with -ffp-contract=off (kernels/CMakeLists.txt), so that a block of fp64 numbers sums to the same bits in
// the vector body and in the tail. For fp32 it makes no difference: their squares are exact in fp64.
#include "kernels/cpu/reduce.h"

#include <algorithm>

#include "kernels/cpu/element.h"
#include "kernels/cpu/loops.h"
#include "kernels/reduce.h"

namespace ashlar::kernels::cpu {

template <typename T>
void sum_of_squares(double* blocks, const T* x, int64_t n) {
  const int64_t num_blocks = (n + kNormBlock - 1) / kNormBlock;
#pragma omp parallel for schedule(static) if (n > kBlock)
  for (int64_t block = 0; block < num_blocks; ++block) {
    const T* from = x + block * kNormBlock;
    blocks[block] = sum_lanes<double>(std::min(kNormBlock, n - block * kNormBlock), [=](int64_t i) {
      const auto value = static_cast<double>(widen(from[i]));
      return value * value;
    });
  }
}

template <typename T>
void sum_in_order(double* total, const T* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(x[i]);
  }
  *total = sum;
}

template void sum_of_squares(double*, const float*, int64_t);
template void sum_of_squares(double*, const double*, int64_t);
template void sum_of_squares(double*, const BFloat16*, int64_t);
template void sum_in_order(double*, const float*, int64_t);
template void sum_in_order(double*, const double*, int64_t);

}  // namespace ashlar::kernels::cpu
