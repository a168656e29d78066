// A tensor-core matrix product of the size of a real one, with the bugs that such kernels have. It serves the
// emulator's tests only: the product's own GEMM is another.
#pragma once

#include <cuda_bf16.h>

namespace ashlar::emu {

enum class GemmBug {
  kNone,
  kTooLittleSharedMemory,
  kDepthTailDropped,
  kCopyWithoutPredicate,
  kWaitTooWeak,
  kNoWait,
  kNoBarrier,
  kWrongStageOverwritten,
  kWrongFragmentAddress,
  kNoColumnBound,
  kNoSwizzle,  // right, but slow
};

// c [m,n] = a [m,k] b [k,n]; n and k are multiples of 8. In device memory.
void planted_gemm(GemmBug bug, __nv_bfloat16* c, const __nv_bfloat16* a, const __nv_bfloat16* b, int m, int n, int k);

}  // namespace ashlar::emu
