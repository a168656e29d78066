#include "tests/emulation/emu_tests/conformance.h"

#include "kernels/cuda/device.cuh"

namespace ashlar::emu {
namespace {

template <bool kIsBf16>
__global__ void mma_kernel(MmaFragments* fragments) {
  const int lane = threadIdx.x;
  const uint32_t a[4] = {fragments->a[lane][0], fragments->a[lane][1], fragments->a[lane][2], fragments->a[lane][3]};
  float d[4] = {fragments->d[lane][0], fragments->d[lane][1], fragments->d[lane][2], fragments->d[lane][3]};
  if (kIsBf16) {
    kernels::cuda::mma_bf16(d, a, fragments->b[lane][0], fragments->b[lane][1]);
  } else {
    kernels::cuda::mma_f16(d, a, fragments->b[lane][0], fragments->b[lane][1]);
  }
  for (int i = 0; i < 4; ++i) {
    fragments->d[lane][i] = d[i];
  }
}

template <bool kTranspose>
__global__ void ldmatrix_kernel(uint32_t* out, const uint16_t* halves) {
  SMEM_STATIC(uint16_t, tile, 256);
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) {
    tile[i] = halves[i];
  }
  __syncwarp();
  uint32_t r[4];
  if (kTranspose) {
    kernels::cuda::ldmatrix_x4_trans(r, kernels::cuda::smem_u32(tile + lane * 8));
  } else {
    kernels::cuda::ldmatrix_x4(r, kernels::cuda::smem_u32(tile + lane * 8));
  }
  for (int i = 0; i < 4; ++i) {
    out[lane * 4 + i] = r[i];
  }
}

}  // namespace

void run_mma(MmaFragments* fragments, bool is_bf16) {
  if (is_bf16) {
    LAUNCH(mma_kernel<true>, dim3(1), dim3(32), 0, nullptr, fragments);
  } else {
    LAUNCH(mma_kernel<false>, dim3(1), dim3(32), 0, nullptr, fragments);
  }
}

void run_ldmatrix(uint32_t* out, const uint16_t* halves, bool transpose) {
  if (transpose) {
    LAUNCH(ldmatrix_kernel<true>, dim3(1), dim3(32), 0, nullptr, out, halves);
  } else {
    LAUNCH(ldmatrix_kernel<false>, dim3(1), dim3(32), 0, nullptr, out, halves);
  }
}

}  // namespace ashlar::emu
