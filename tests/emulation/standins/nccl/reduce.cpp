// Sums and maxima in ascending rank order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "tests/emulation/standins/nccl/comm.h"

namespace ashlar::standin {
namespace {

template <typename T, typename Wide>
void reduce_as(std::byte* dst, const std::vector<const std::byte*>& sources, size_t count, bool sum) {
  T* out = reinterpret_cast<T*>(dst);
  for (size_t i = 0; i < count; ++i) {
    Wide value = static_cast<Wide>(reinterpret_cast<const T*>(sources[0])[i]);
    for (size_t rank = 1; rank < sources.size(); ++rank) {
      const Wide next = static_cast<Wide>(reinterpret_cast<const T*>(sources[rank])[i]);
      if (sum) {
        value = static_cast<Wide>(value + next);
      } else if (next > value || value != value) {  // as the real one, a maximum passes over NaN
        value = next;
      }
    }
    out[i] = static_cast<T>(value);
  }
}

}  // namespace

size_t type_bytes(int32_t type) {
  switch (static_cast<ncclDataType_t>(type)) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
    case ncclInt32:
      return 4;
    case ncclFloat64:
    case ncclInt64:
      return 8;
    default:
      return 0;
  }
}

void reduce(std::byte* dst, const std::vector<const std::byte*>& sources, size_t count, int32_t type, int32_t op) {
  const bool sum = op == ncclSum;
  switch (static_cast<ncclDataType_t>(type)) {
    case ncclUint8:
      return reduce_as<uint8_t, uint8_t>(dst, sources, count, sum);
    case ncclFloat16:
      return reduce_as<__half, float>(dst, sources, count, sum);
    case ncclBfloat16:
      return reduce_as<__nv_bfloat16, float>(dst, sources, count, sum);
    case ncclFloat32:
      return reduce_as<float, float>(dst, sources, count, sum);
    case ncclInt32:
      return reduce_as<int32_t, int32_t>(dst, sources, count, sum);
    case ncclFloat64:
      return reduce_as<double, double>(dst, sources, count, sum);
    case ncclInt64:
      return reduce_as<int64_t, int64_t>(dst, sources, count, sum);
    default:
      return;
  }
}

}  // namespace ashlar::standin
