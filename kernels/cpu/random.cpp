#include "kernels/cpu/random.h"

#include "kernels/cpu/loops.h"

namespace ashlar::kernels::cpu {

void fill_normal(float* out, const PhiloxStream& random, uint64_t first, double mean, double std, int64_t n) {
  for_blocks(n, [=](int64_t begin, int64_t end) {
    random.normals(first + static_cast<uint64_t>(begin), std::span(out + begin, out + end));
    for (int64_t i = begin; i < end; ++i) {
      out[i] = static_cast<float>(mean + std * static_cast<double>(out[i]));
    }
  });
}

void fill_uniform(float* out, const PhiloxStream& random, uint64_t first, int64_t n) {
  for_blocks(n, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = static_cast<float>(random.word(first + static_cast<uint64_t>(i)) >> 8) * 0x1p-24f;
    }
  });
}

}  // namespace ashlar::kernels::cpu
