#include "tests/emulation/emu_tests/planted.h"

#include "kernels/cuda/device.cuh"

namespace ashlar::emu {
namespace {

using kernels::cuda::cp_async16;
using kernels::cuda::cp_async_commit;
using kernels::cuda::cp_async_wait;
using kernels::cuda::ldmatrix_x4;
using kernels::cuda::load16;
using kernels::cuda::smem_u32;

// ---- shared memory

template <bool kFaulty>
__global__ void exchange_within_a_warp(float* out, const float* in) {
  SMEM_STATIC(float, values, 128);
  const int t = threadIdx.x;
  values[t] = in[t];
  if (!kFaulty) {
    __syncwarp();
  }
  out[t] = values[t ^ 7];
}

// Only the lower half of each warp exchanges, so only its lanes need to meet; the bug lets the other half meet.
template <bool kFaulty>
__global__ void exchange_within_half_a_warp(float* out, const float* in) {
  SMEM_STATIC(float, values, 64);
  const int t = threadIdx.x;
  const bool is_low = (t & 16) == 0;
  values[t] = in[t];
  if (is_low) {
    if (!kFaulty) {
      __syncwarp(0x0000FFFFu);
    }
    out[t] = values[t ^ 5];
  } else {
    __syncwarp(0xFFFF0000u);
    out[t] = values[t ^ 5];
  }
}

// Relies on lanes running in lock step, as before Volta.
template <bool kFaulty>
__global__ void lock_step_sum(float* out, const float* in) {
  SMEM_STATIC(float, values, 32);
  const int lane = threadIdx.x;
  values[lane] = in[lane];
  __syncwarp();
  for (int width = 16; width > 0; width /= 2) {
    if (kFaulty) {
      if (lane < width) {
        values[lane] += values[lane + width];
      }
    } else {
      const float other = lane < width ? values[lane + width] : 0.0f;
      __syncwarp();
      if (lane < width) {
        values[lane] += other;
      }
      __syncwarp();
    }
  }
  if (lane == 0) {
    out[0] = values[0];
  }
}

// The second sum may overwrite what a slow warp still reads of the first.
template <bool kFaulty>
__global__ void reused_sums(float* out, const float* in) {
  SMEM_STATIC(float, sums, 4);
  const int t = threadIdx.x;
  float total = 0;
  for (int round = 0; round < 2; ++round) {
    float value = in[round * 128 + t];
    for (int width = 16; width > 0; width /= 2) {
      value += __shfl_xor_sync(0xFFFFFFFFu, value, width);
    }
    if (t % 32 == 0) {
      sums[t / 32] = value;
    }
    __syncthreads();
    total += sums[0] + sums[1] + sums[2] + sums[3];
    if (!kFaulty) {
      __syncthreads();
    }
  }
  out[t] = total;
}

template <bool kFaulty>
__global__ void neighbour_bytes(float* out) {
  SMEM_STATIC(unsigned char, values, 64);
  const int t = threadIdx.x;
  values[t] = static_cast<unsigned char>(t);
  __syncthreads();
  out[t] = values[63 - t];
  if (kFaulty) {
    values[t ^ 1] = 0;
  }
}

template <bool kFaulty>
__global__ void partly_written(float* out) {
  SMEM_STATIC(float, values, 64);
  const int t = threadIdx.x;
  if (!kFaulty || t < 40) {
    values[t] = static_cast<float>(t);
  }
  __syncthreads();
  out[t] = values[t ^ 1];
}

template <bool kFaulty>
__global__ void one_too_small(float* out, const float* in) {
  SMEM_STATIC(float, sums, kFaulty ? 3 : 4);
  SMEM_STATIC(float, behind, 4);
  const int t = threadIdx.x;
  if (t < 4) {
    behind[t] = 1.0f;
  }
  if (t % 32 == 0) {
    sums[t / 32] = in[t];
  }
  __syncthreads();
  out[t] = sums[t / 32] + behind[t % 4];
}

template <bool kFaulty>
__global__ void dynamic_end(float* out) {
  SMEM_DYN(bytes);
  auto* values = reinterpret_cast<float*>(bytes);
  values[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x ^ 1];
}

// Each lane writes a row of 16 bytes that ldmatrix then gives to other lanes.
template <bool kFaulty>
__global__ void ldmatrix_of_own_rows(float* out) {
  SMEM_DYN(bytes);
  const int t = threadIdx.x;
  *reinterpret_cast<uint4*>(bytes + t * 16) = make_uint4(1, 2, 3, 4);
  if (!kFaulty) {
    __syncwarp();
  }
  uint32_t r[4];
  ldmatrix_x4(r, smem_u32(bytes + t * 16));
  out[t] = static_cast<float>(r[0] + r[1] + r[2] + r[3]);
}

// ---- cp.async

template <bool kFaulty>
__global__ void copy_not_waited_for(float* out, const float* in) {
  SMEM_DYN(bytes);
  const int t = threadIdx.x;
  cp_async16(smem_u32(bytes + t * 16), in + t * 4);
  cp_async_commit();
  cp_async16(smem_u32(bytes + 512 + t * 16), in + t * 4);
  cp_async_commit();
  cp_async_wait<kFaulty ? 1 : 0>();
  out[t] = reinterpret_cast<const float*>(bytes + 512)[t * 4];
  cp_async_wait<0>();
}

// A wait is for one's own copies; those of others take a barrier as well.
template <bool kFaulty>
__global__ void copy_of_another_thread(float* out, const float* in) {
  SMEM_DYN(bytes);
  const int t = threadIdx.x;
  cp_async16(smem_u32(bytes + t * 16), in + t * 4);
  cp_async_commit();
  cp_async_wait<0>();
  if (!kFaulty) {
    __syncthreads();
  }
  out[t] = reinterpret_cast<const float*>(bytes)[(t ^ 1) * 4];
}

template <bool kFaulty>
__global__ void copy_left_in_flight(float* out, const float* in) {
  SMEM_DYN(bytes);
  cp_async16(smem_u32(bytes + threadIdx.x * 16), in + threadIdx.x * 4);
  cp_async_commit();
  if (!kFaulty) {
    cp_async_wait<0>();
  }
  out[threadIdx.x] = 1.0f;
}

template <bool kFaulty>
__global__ void copy_with_changing_source(float* out) {
  SMEM_DYN(bytes);
  float* source = out + threadIdx.x * 4;
  source[0] = 1.0f;
  cp_async16(smem_u32(bytes + threadIdx.x * 16), source);
  cp_async_commit();
  if (kFaulty) {
    source[0] = 2.0f;
  }
  cp_async_wait<0>();
}

template <bool kFaulty>
__global__ void copy_beyond_the_end(float* out, const float* in, int num_values) {
  SMEM_DYN(bytes);
  const int at = threadIdx.x * 4 + num_values - 64;
  const bool is_valid = kFaulty || at < num_values;
  cp_async16(smem_u32(bytes + threadIdx.x * 16), is_valid ? in + at : in, is_valid);
  cp_async_commit();
  cp_async_wait<0>();
  out[threadIdx.x] = reinterpret_cast<const float*>(bytes)[threadIdx.x * 4];
}

// ---- global memory

template <bool kFaulty>
__global__ void no_bound(float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (kFaulty || i < n) {
    out[i] = static_cast<float>(i);
  }
}

template <bool kFaulty>
__global__ void two_blocks_add(float* out, const float* in) {
  const float value = in[blockIdx.x * 64 + threadIdx.x];
  if (kFaulty) {
    out[threadIdx.x] += value;
  } else {
    atomicAdd(out + threadIdx.x, value);
  }
}

template <bool kFaulty>
__global__ void reads_another_block(float* out, float* scratch) {
  if (threadIdx.x == 0) {
    scratch[blockIdx.x] = 1.0f;
    out[blockIdx.x] = scratch[kFaulty ? blockIdx.x ^ 1 : blockIdx.x];
  }
}

// In place, but shifted: a block overwrites what its neighbour may not have read yet.
template <bool kFaulty>
__global__ void shifted_in_place(float* values, const float* in) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  const float value = kFaulty ? values[i + 1] : in[i + 1];
  values[i] = value;
}

template <bool kFaulty>
__global__ void global_exchange_in_a_block(float* scratch, float* out) {
  const int t = threadIdx.x;
  scratch[t] = static_cast<float>(t);
  if (!kFaulty) {
    __syncthreads();
  }
  out[t] = scratch[t ^ 33];
}

template <bool kFaulty>
__global__ void cast_to_float4(float* out, const float* in) {
  const float4 v = *reinterpret_cast<const float4*>(in + 4 * threadIdx.x + (kFaulty ? 1 : 0));
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

template <bool kFaulty>
__global__ void load_of_16_bytes(float* out, const float* in) {
  const auto v = load16<float4>(in + 4 * threadIdx.x + (kFaulty ? 2 : 0));
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

// The instruction is ld.global: an address of shared memory means nothing to it.
template <bool kFaulty>
__global__ void global_load_of_shared_memory(float* out, const float* in) {
  SMEM_STATIC(float4, values, 32);
  values[threadIdx.x] = make_float4(1, 2, 3, 4);
  const auto v = load16<float4>(kFaulty ? reinterpret_cast<const float*>(values + threadIdx.x) : in + 4 * threadIdx.x);
  out[threadIdx.x] = v.x + v.y;
}

template <bool kFaulty>
__global__ void register_array(float* out, const float* in, int n) {
  float values[8];
  for (int i = 0; i < (kFaulty ? n : 8); ++i) {
    values[i & 15] = static_cast<float>(i) * in[i & 7];
  }
  float sum = 0;
  for (float value : values) {
    sum += value;
  }
  out[threadIdx.x] = sum;
}

// ---- threads that do not meet

template <bool kFaulty>
__global__ void two_barriers(float* out) {
  SMEM_STATIC(float, values, 64);
  const int t = threadIdx.x;
  values[t] = static_cast<float>(t);
  if (kFaulty) {
    if (t < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else {
    __syncthreads();
  }
  out[t] = values[63 - t];
}

template <bool kFaulty>
__global__ void early_exit(float* out, int n) {
  SMEM_STATIC(float, values, 64);
  const int t = threadIdx.x;
  if (kFaulty && t >= n) {
    return;
  }
  values[t] = static_cast<float>(t);
  __syncthreads();
  if (t < n) {
    out[t] = values[n - 1 - t];
  }
}

template <bool kFaulty>
__global__ void shuffle_from_outside(float* out) {
  const int lane = threadIdx.x;
  auto value = static_cast<float>(lane);
  if (lane < 16) {
    value = __shfl_sync(0xFFFFu, value, kFaulty ? 20 : 3);
  }
  out[lane] = value;
}

template <bool kFaulty>
__global__ void shuffle_in_half_a_warp(float* out) {
  const int t = threadIdx.x;
  auto value = static_cast<float>(t);
  if (!kFaulty || (t & 16) == 0) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, 1);
  }
  __syncthreads();
  out[t] = value;
}

template <bool kFaulty>
__global__ void different_shuffles(float* out) {
  const int lane = threadIdx.x;
  auto value = static_cast<float>(lane);
  if (kFaulty && lane >= 16) {
    value = __shfl_down_sync(0xFFFFFFFFu, value, 1);
  } else {
    value = __shfl_xor_sync(0xFFFFFFFFu, value, 1);
  }
  out[lane] = value;
}

// Blocks may run one after the other, so none may wait for another.
template <bool kFaulty>
__global__ void waits_for_a_block(int* flags) {
  if (threadIdx.x == 0) {
    const unsigned next = kFaulty ? (blockIdx.x + 1) % gridDim.x : blockIdx.x;
    atomicAdd(flags + blockIdx.x, 1);
    while (atomicAdd(flags + next, 0) == 0) {
    }
  }
}

template <bool kFaulty>
__global__ void empty() {}

#define TWIN(name, fault, grid, block, shared, ...)                        \
  PlantedCase {                                                            \
#name, fault, [](bool faulty, [[maybe_unused]] const PlantedMemory& m) { \
      if (faulty) {                                                           \
        LAUNCH((name<true>), dim3(grid), dim3(block), shared, nullptr __VA_OPT__(, ) __VA_ARGS__); \
      } else {                                                                \
        LAUNCH((name<false>), dim3(grid), dim3(block), shared, nullptr __VA_OPT__(, ) __VA_ARGS__); \
      }                                                                       \
    } \
  }

const PlantedCase kCases[] = {
    TWIN(exchange_within_a_warp, Fault::kSharedRace, 1, 128, 0, m.a, m.b),
    TWIN(exchange_within_half_a_warp, Fault::kSharedRace, 1, 64, 0, m.a, m.b),
    TWIN(lock_step_sum, Fault::kSharedRace, 1, 32, 0, m.a, m.b),
    TWIN(reused_sums, Fault::kSharedRace, 1, 128, 0, m.a, m.b),
    TWIN(neighbour_bytes, Fault::kSharedRace, 1, 64, 0, m.a),
    TWIN(partly_written, Fault::kUninitialised, 1, 64, 0, m.a),
    TWIN(one_too_small, Fault::kSharedBounds, 1, 128, 0, m.a, m.b),
    TWIN(dynamic_end, Fault::kSharedBounds, 1, 64, faulty ? 252 : 256, m.a),
    TWIN(ldmatrix_of_own_rows, Fault::kSharedRace, 1, 32, 512, m.a),
    TWIN(copy_not_waited_for, Fault::kAsyncCopy, 1, 32, 1024, m.a, m.b),
    TWIN(copy_of_another_thread, Fault::kSharedRace, 1, 64, 1024, m.a, m.b),
    TWIN(copy_left_in_flight, Fault::kAsyncCopy, 1, 32, 512, m.a, m.b),
    TWIN(copy_with_changing_source, Fault::kAsyncCopy, 1, 32, 512, m.a),
    TWIN(copy_beyond_the_end, Fault::kGlobalBounds, 1, 32, 512, m.a, m.b, 1024),
    TWIN(no_bound, Fault::kGlobalBounds, 5, 256, 0, m.a, 1024),
    TWIN(two_blocks_add, Fault::kGlobalRace, 2, 64, 0, m.a, m.b),
    TWIN(reads_another_block, Fault::kGlobalRace, 4, 32, 0, m.a, m.b),
    TWIN(shifted_in_place, Fault::kGlobalRace, 4, 32, 0, m.a, m.b),
    TWIN(global_exchange_in_a_block, Fault::kGlobalRace, 1, 64, 0, m.b, m.a),
    TWIN(cast_to_float4, Fault::kMisaligned, 1, 32, 0, m.a, m.b),
    TWIN(load_of_16_bytes, Fault::kMisaligned, 1, 32, 0, m.a, m.b),
    TWIN(global_load_of_shared_memory, Fault::kGlobalBounds, 1, 32, 0, m.a, m.b),
    TWIN(register_array, Fault::kIndex, 1, 1, 0, m.a, m.b, 12),
    TWIN(two_barriers, Fault::kDivergence, 1, 64, 0, m.a),
    TWIN(early_exit, Fault::kDivergence, 1, 64, 0, m.a, 50),
    TWIN(shuffle_from_outside, Fault::kDivergence, 1, 32, 0, m.a),
    TWIN(shuffle_in_half_a_warp, Fault::kDeadlock, 1, 64, 0, m.a),
    TWIN(different_shuffles, Fault::kDivergence, 1, 32, 0, m.a),
    TWIN(waits_for_a_block, Fault::kHang, 2, 32, 0, m.flags),
    TWIN(empty, Fault::kLaunch, 1, faulty ? 1025 : 1024, 0),
    TWIN(empty, Fault::kLaunch, dim3(1, faulty ? 65536 : 2), 32, 0),
    TWIN(empty, Fault::kLaunch, 1, 32, faulty ? 164 * 1024 : 163 * 1024),
};

}  // namespace

std::span<const PlantedCase> planted_cases() {
  return kCases;
}

}  // namespace ashlar::emu
