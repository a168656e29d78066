// The one header that kernels include, and the only one that knows two compilers: nvcc, and g++ with the emulator of
// tests/emulation. What a kernel may use beyond plain CUDA C++ stands here: launches, declared shared memory, and
// wrappers over PTX.
#pragma once

#ifdef ASHLAR_EMULATED
#include <emu/kernel_words.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#endif

#include "kernels/cuda/launch_check.h"

// SMEM_STATIC(float, sums, 8) declares float sums[8] in shared memory; SMEM_DYN(bytes) names the launch's dynamic
// part, aligned to 128 bytes. DEVICE_INLINE marks helpers of kernels.
#ifdef ASHLAR_EMULATED
#define DEVICE_INLINE inline
#define SMEM_STATIC(type, name, count) \
  static const char name##_tag = 0;    \
  type* const name = static_cast<type*>(ashlar::emu::static_shared(&name##_tag, sizeof(type) * (count)))
#define SMEM_DYN(name) unsigned char* const name = ashlar::emu::dynamic_shared()
#else
#define DEVICE_INLINE __device__ __forceinline__
#define SMEM_STATIC(type, name, count) __shared__ __align__(16) type name[count]
#define SMEM_DYN(name) extern __shared__ __align__(128) unsigned char name[]
#endif

// LAUNCH((kernel<4>), grid, block, shared_bytes, stream, arguments...). Stream-ordered. Throws when the launch is
// refused.
#define LAUNCH(kernel, ...) ::ashlar::kernels::cuda::launch_kernel(#kernel, kernel, __VA_ARGS__)

namespace ashlar::kernels::cuda {

#ifdef ASHLAR_EMULATED

template <typename... Parameters, typename... Arguments>
void launch_kernel(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Arguments... arguments) {
  emu::launch(name, kernel, grid, block, shared_bytes, stream, arguments...);
}

ASHLAR_RAW inline uint32_t smem_u32(const void* p) {
  return emu::shared_address(p);
}

ASHLAR_RAW inline void cp_async16(uint32_t shared, const void* global, bool valid = true, ASHLAR_SITE) {
  emu::copy_async(shared, global, valid ? 16 : 0, site);
}
inline void cp_async_commit() {
  emu::copy_async_commit();
}
template <int kGroupsLeft>
inline void cp_async_wait() {
  emu::copy_async_wait(kGroupsLeft);
}

ASHLAR_RAW inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared, ASHLAR_SITE) {
  emu::LdmatrixSlot slot{shared, r, 4, false};
  emu::warp_operation(emu::ldmatrix, ~0u, &slot, "ldmatrix.x4", site);
}
ASHLAR_RAW inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t shared, ASHLAR_SITE) {
  emu::LdmatrixSlot slot{shared, r, 4, true};
  emu::warp_operation(emu::ldmatrix, ~0u, &slot, "ldmatrix.x4.trans", site);
}
ASHLAR_RAW inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, ASHLAR_SITE) {
  const uint32_t b[2] = {b0, b1};
  emu::MmaSlot slot{d, a, b};
  emu::warp_operation(emu::mma_m16n8k16_bf16, ~0u, &slot, "mma.m16n8k16", site);
}
ASHLAR_RAW inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, ASHLAR_SITE) {
  const uint32_t b[2] = {b0, b1};
  emu::MmaSlot slot{d, a, b};
  emu::warp_operation(emu::mma_m16n8k16_f16, ~0u, &slot, "mma.m16n8k16", site);
}

inline float exp2_approx(float x) {
  return std::exp2(x);
}
template <typename V>
ASHLAR_RAW __attribute__((noinline)) V load16(const void* p) {
  static_assert(sizeof(V) == 16);
  emu::check_read(p, 16, __builtin_return_address(0));
  V value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
template <typename V>
ASHLAR_RAW __attribute__((noinline)) void store16(void* p, V value) {
  static_assert(sizeof(V) == 16);
  emu::check_write(p, 16, __builtin_return_address(0));
  std::memcpy(p, &value, sizeof value);
}
template <typename V>
ASHLAR_RAW __attribute__((noinline)) V load8(const void* p) {
  static_assert(sizeof(V) == 8);
  emu::check_read(p, 8, __builtin_return_address(0));
  V value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
template <typename V>
ASHLAR_RAW __attribute__((noinline)) void store8(void* p, V value) {
  static_assert(sizeof(V) == 8);
  emu::check_write(p, 8, __builtin_return_address(0));
  std::memcpy(p, &value, sizeof value);
}

#else

template <typename... Parameters, typename... Arguments>
void launch_kernel(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Arguments... arguments) {
  constexpr size_t kDefaultLimit = 48 * 1024;  // beyond it a kernel must ask
  if (shared_bytes > kDefaultLimit) {
    check_launch(static_cast<int>(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       static_cast<int>(shared_bytes))),
                 name);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check_launch(static_cast<int>(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...)), name);
}

// A shared-memory address as PTX wants it; arithmetic on it is allowed.
DEVICE_INLINE uint32_t smem_u32(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Copies 16 bytes past the registers, or writes zeros when not valid. Arrives with cp_async_wait, for this thread only.
DEVICE_INLINE void cp_async16(uint32_t shared, const void* global, bool valid = true) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(source_bytes)
               : "memory");
}
DEVICE_INLINE void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kGroupsLeft>
DEVICE_INLINE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane 8 i + r holds the address of row r of matrix i.
DEVICE_INLINE void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
DEVICE_INLINE void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
// d [16,8] += a [16,16] b [16,8], fp32 sums of 16-bit products.
DEVICE_INLINE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE_INLINE void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE_INLINE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 16 bytes of global memory in one access. As PTX, because nvcc takes C++'s apart: a struct of four bf16 pairs is moved
// in four pieces, and a uint4 store beside a scalar tail is merged with the tail into scalar stores (seen with
// CUDA 13.0).
template <typename V>
DEVICE_INLINE V load16(const void* p) {
  static_assert(sizeof(V) == 16);
  uint4 bits;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(__cvta_generic_to_global(p))
               : "memory");
  V value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <typename V>
DEVICE_INLINE void store16(void* p, V value) {
  static_assert(sizeof(V) == 16);
  uint4 bits;
  memcpy(&bits, &value, sizeof bits);
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(p)), "r"(bits.x), "r"(bits.y),
               "r"(bits.z), "r"(bits.w)
               : "memory");
}
// 8 bytes likewise.
template <typename V>
DEVICE_INLINE V load8(const void* p) {
  static_assert(sizeof(V) == 8);
  uint2 bits;
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];"
               : "=r"(bits.x), "=r"(bits.y)
               : "l"(__cvta_generic_to_global(p))
               : "memory");
  V value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <typename V>
DEVICE_INLINE void store8(void* p, V value) {
  static_assert(sizeof(V) == 8);
  uint2 bits;
  memcpy(&bits, &value, sizeof bits);
  asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(__cvta_generic_to_global(p)), "r"(bits.x), "r"(bits.y)
               : "memory");
}

#endif

using Bf16 = __nv_bfloat16;
using F16 = __half;

// Conversions of one element; to 16 bits they round to nearest even.
DEVICE_INLINE float to_float(float x) {
  return x;
}
DEVICE_INLINE float to_float(Bf16 x) {
  return __bfloat162float(x);
}
DEVICE_INLINE float to_float(F16 x) {
  return __half2float(x);
}
template <typename T>
DEVICE_INLINE T from_float(float x);
template <>
DEVICE_INLINE float from_float<float>(float x) {
  return x;
}
template <>
DEVICE_INLINE Bf16 from_float<Bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
DEVICE_INLINE F16 from_float<F16>(float x) {
  return __float2half_rn(x);
}

// Two elements of 16 bits in one register, the first in the low half, as PTX and memory have them.
template <typename T>
DEVICE_INLINE float2 unpack_pair(uint32_t bits);
template <>
DEVICE_INLINE float2 unpack_pair<Bf16>(uint32_t bits) {
  __nv_bfloat162 pair;
  memcpy(static_cast<void*>(&pair), &bits, sizeof pair);
  return __bfloat1622float2(pair);
}
template <>
DEVICE_INLINE float2 unpack_pair<F16>(uint32_t bits) {
  __half2 pair;
  memcpy(static_cast<void*>(&pair), &bits, sizeof pair);
  return __half22float2(pair);
}
template <typename T>
DEVICE_INLINE uint32_t pack_pair(float first, float second);
template <>
DEVICE_INLINE uint32_t pack_pair<Bf16>(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
template <>
DEVICE_INLINE uint32_t pack_pair<F16>(float first, float second) {
  const __half2 pair = __floats2half2_rn(first, second);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

}  // namespace ashlar::kernels::cuda
