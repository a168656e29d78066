// What nvcc knows and g++ does not, for a .cu file that g++ compiles. Types and conversions are the real ones: CUDA's
// headers compile under g++. Functions marked RAW are not instrumented; each checks its accesses itself.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#include "tests/emulation/emu/emulator.h"
#include "tests/emulation/emu/kernel_calls.h"

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

#define ASHLAR_RAW __attribute__((no_sanitize("thread"), no_sanitize("undefined")))
// The caller's file and line, as a last argument that nobody passes.
#define ASHLAR_SITE ashlar::emu::Site site = {__builtin_FILE(), __builtin_LINE()}

#define threadIdx (ashlar::emu::thread_index())
#define blockIdx (ashlar::emu::block_index())
#define blockDim (ashlar::emu::block_dimensions())
#define gridDim (ashlar::emu::grid_dimensions())

ASHLAR_RAW inline void __syncthreads(ASHLAR_SITE) {
  ashlar::emu::block_barrier(ashlar::emu::BarrierKind::kPlain, 0, site);
}
ASHLAR_RAW inline int __syncthreads_or(int predicate, ASHLAR_SITE) {
  return ashlar::emu::block_barrier(ashlar::emu::BarrierKind::kOr, predicate, site);
}
ASHLAR_RAW inline int __syncthreads_and(int predicate, ASHLAR_SITE) {
  return ashlar::emu::block_barrier(ashlar::emu::BarrierKind::kAnd, predicate, site);
}
ASHLAR_RAW inline int __syncthreads_count(int predicate, ASHLAR_SITE) {
  return ashlar::emu::block_barrier(ashlar::emu::BarrierKind::kCount, predicate, site);
}
ASHLAR_RAW inline void __syncwarp(uint32_t mask = ~0u, ASHLAR_SITE) {
  ashlar::emu::sync_warp(mask, site);
}
// Orders writes of one thread for others; blocks run one at a time here, so nothing is to be done, nor is its absence
// noticed.
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace ashlar::emu {

template <typename T>
struct ShuffleSlot {
  T in, out;
  int source;  // lane, or -1: the lane keeps its own value
};

template <typename T>
ASHLAR_RAW void shuffle_lanes(void** slots, uint32_t mask) {
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) == 0) {
      continue;
    }
    auto* slot = static_cast<ShuffleSlot<T>*>(slots[lane]);
    if (slot->source < 0) {
      slot->out = slot->in;
    } else if ((mask >> slot->source & 1) != 0) {
      slot->out = static_cast<ShuffleSlot<T>*>(slots[slot->source])->in;
    } else {
      shuffle_outside_mask(lane, slot->source);
    }
  }
}

template <typename T>
ASHLAR_RAW inline T shuffle(T value, int source, uint32_t mask, const char* what, Site site) {
  ShuffleSlot<T> slot{value, T(), source};
  warp_operation(shuffle_lanes<T>, mask, &slot, what, site);
  return slot.out;
}

ASHLAR_RAW inline int lane_in_warp() {
  return static_cast<int>(current_lane->lane);
}

}  // namespace ashlar::emu

// Segments of `width` lanes; a source outside of its segment means the lane's own value (CUDA C++ Programming Guide,
// warp shuffle functions).
template <typename T>
ASHLAR_RAW inline T __shfl_sync(uint32_t mask, T value, int source, int width = 32, ASHLAR_SITE) {
  const int first = ashlar::emu::lane_in_warp() & ~(width - 1);
  return ashlar::emu::shuffle(value, first + (source & (width - 1)), mask, "__shfl_sync", site);
}
template <typename T>
ASHLAR_RAW inline T __shfl_xor_sync(uint32_t mask, T value, int lane_mask, int width = 32, ASHLAR_SITE) {
  const int lane = ashlar::emu::lane_in_warp();
  const int source = lane ^ lane_mask;
  const bool outside = (source & ~(width - 1)) > (lane & ~(width - 1));
  return ashlar::emu::shuffle(value, outside ? -1 : source, mask, "__shfl_xor_sync", site);
}
template <typename T>
ASHLAR_RAW inline T __shfl_down_sync(uint32_t mask, T value, int delta, int width = 32, ASHLAR_SITE) {
  const int lane = ashlar::emu::lane_in_warp();
  const int source = lane + delta;
  const bool outside = (source & ~(width - 1)) != (lane & ~(width - 1));
  return ashlar::emu::shuffle(value, outside ? -1 : source, mask, "__shfl_down_sync", site);
}
template <typename T>
ASHLAR_RAW inline T __shfl_up_sync(uint32_t mask, T value, int delta, int width = 32, ASHLAR_SITE) {
  const int lane = ashlar::emu::lane_in_warp();
  const int source = lane - delta;
  return ashlar::emu::shuffle(value, source < (lane & ~(width - 1)) ? -1 : source, mask, "__shfl_up_sync", site);
}
ASHLAR_RAW inline uint32_t __ballot_sync(uint32_t mask, int predicate, ASHLAR_SITE) {
  ashlar::emu::VoteSlot slot{predicate, 0};
  ashlar::emu::warp_operation(ashlar::emu::vote, mask, &slot, "vote", site);
  return slot.ballot;
}
ASHLAR_RAW inline int __any_sync(uint32_t mask, int predicate, ASHLAR_SITE) {
  return __ballot_sync(mask, predicate, site) != 0;
}
ASHLAR_RAW inline int __all_sync(uint32_t mask, int predicate, ASHLAR_SITE) {
  return __ballot_sync(mask, predicate == 0 ? 1 : 0, site) == 0;
}

template <typename T>
ASHLAR_RAW __attribute__((noinline)) T atomicAdd(T* pointer, T value) {
  ashlar::emu::check_atomic(pointer, sizeof(T), __builtin_return_address(0));
  const T old = *pointer;  // no other fiber runs until this one waits
  *pointer = old + value;
  return old;
}
template <typename T>
ASHLAR_RAW __attribute__((noinline)) T atomicMax(T* pointer, T value) {
  ashlar::emu::check_atomic(pointer, sizeof(T), __builtin_return_address(0));
  const T old = *pointer;
  *pointer = old < value ? value : old;
  return old;
}

template <typename T>
inline T __ldg(const T* pointer) {
  return *pointer;
}

// Fast functions are the exact ones here: their approximation error is not emulated.
inline float __expf(float x) {
  return std::exp(x);
}
inline float __logf(float x) {
  return std::log(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline int __ffs(int x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1;
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
template <typename T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
inline T max(T a, T b) {
  return a < b ? b : a;
}

namespace ashlar::emu {

// Gives the launch to hooks().enqueue, or runs it at once when there is none.
void launch_on_stream(cudaStream_t stream, const char* name, std::function<void()> work);

// The kernel with its arguments, converted to the parameters' types as a real launch does.
template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Arguments... arguments) {
  struct Call {
    std::tuple<Parameters...> parameters;
    void (*kernel)(Parameters...);
  };
  const Call call{{static_cast<Parameters>(arguments)...}, kernel};
  launch_on_stream(stream, name, [=] {
    run(grid, block, shared_bytes, name,
        {[](const void* p) {
           const auto* q = static_cast<const Call*>(p);
           std::apply(q->kernel, q->parameters);
         },
         &call, sizeof call});
  });
}

}  // namespace ashlar::emu
