#include "tests/emulation/emu_tests/planted_gemm.h"

#include "kernels/cuda/device.cuh"

namespace ashlar::emu {
namespace {

using kernels::cuda::cp_async16;
using kernels::cuda::cp_async_commit;
using kernels::cuda::cp_async_wait;
using kernels::cuda::ldmatrix_x4;
using kernels::cuda::ldmatrix_x4_trans;
using kernels::cuda::mma_bf16;
using kernels::cuda::smem_u32;

// Tiles of 64 x 64 by 4 warps of 32 x 32, 32 deep, in 3 stages.
constexpr int kRows = 64;
constexpr int kColumns = 64;
constexpr int kDepth = 32;
constexpr int kStages = 3;
constexpr int kThreads = 128;
constexpr int kBytesA = kRows * kDepth * 2;
constexpr int kBytesB = kDepth * kColumns * 2;

// Chunks of 16 bytes are exchanged within a row so that 8 rows of one chunk lie in 8 different groups of 4 banks.
template <GemmBug kBug>
DEVICE_INLINE int offset_a(int row, int chunk) {
  return row * 64 + (kBug == GemmBug::kNoSwizzle ? chunk : chunk ^ (row >> 1 & 3)) * 16;
}
template <GemmBug kBug>
DEVICE_INLINE int offset_b(int row, int chunk) {
  return row * 128 + (kBug == GemmBug::kNoSwizzle ? chunk : chunk ^ (row & 7)) * 16;
}

template <GemmBug kBug>
__global__ void __launch_bounds__(kThreads)
    gemm(__nv_bfloat16* c, const __nv_bfloat16* a, const __nv_bfloat16* b, int m, int n, int k) {
  SMEM_DYN(shared);
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp_row = thread / 64 * 32;
  const int warp_column = thread / 32 % 2 * 32;
  const int row0 = blockIdx.y * kRows;
  const int column0 = blockIdx.x * kColumns;
  const int num_steps = kBug == GemmBug::kDepthTailDropped ? k / kDepth : (k + kDepth - 1) / kDepth;
  const uint32_t shared_a = smem_u32(shared);
  const uint32_t shared_b = shared_a + kStages * kBytesA;
  const auto load = [&](int step, int stage) {
    for (int i = thread; i < kRows * kDepth / 8; i += kThreads) {
      const int row = i / 4;
      const int chunk = i % 4;
      const bool is_valid = row0 + row < m && step * kDepth + chunk * 8 < k;
      cp_async16(shared_a + stage * kBytesA + offset_a<kBug>(row, chunk),
                 is_valid ? a + (row0 + row) * k + step * kDepth + chunk * 8 : a, is_valid);
    }
    for (int i = thread; i < kDepth * kColumns / 8; i += kThreads) {
      const int row = i / 8;
      const int chunk = i % 8;
      const bool is_valid =
          kBug == GemmBug::kCopyWithoutPredicate || (step * kDepth + row < k && column0 + chunk * 8 < n);
      cp_async16(shared_b + stage * kBytesB + offset_b<kBug>(row, chunk),
                 is_valid ? b + (step * kDepth + row) * n + column0 + chunk * 8 : b, is_valid);
    }
  };
  float sums[2][4][4] = {};
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < num_steps) {
      load(stage, stage);
    }
    cp_async_commit();
  }
  for (int step = 0; step < num_steps; ++step) {
    if (kBug == GemmBug::kWaitTooWeak) {
      cp_async_wait<kStages - 1>();
    } else if (kBug != GemmBug::kNoWait) {
      cp_async_wait<kStages - 2>();
    }
    if (kBug != GemmBug::kNoBarrier) {
      __syncthreads();
    }
    const int next = step + kStages - 1;
    if (next < num_steps) {
      load(next, (kBug == GemmBug::kWrongStageOverwritten ? step : next) % kStages);
    }
    cp_async_commit();
    const uint32_t tile_a = shared_a + step % kStages * kBytesA;
    const uint32_t tile_b = shared_b + step % kStages * kBytesB;
    for (int depth = 0; depth < 2; ++depth) {
      uint32_t fragments_a[2][4];
      uint32_t fragments_b[2][4];
      for (int i = 0; i < 2; ++i) {
        const bool is_wrong = kBug == GemmBug::kWrongFragmentAddress;
        const int row = warp_row + i * 16 + (is_wrong ? lane % 8 + lane / 16 * 8 : lane % 16);
        ldmatrix_x4(fragments_a[i], tile_a + offset_a<kBug>(row, depth * 2 + (is_wrong ? lane / 8 % 2 : lane / 16)));
        ldmatrix_x4_trans(fragments_b[i],
                          tile_b + offset_b<kBug>(depth * 16 + lane % 16, warp_column / 8 + i * 2 + lane / 16));
      }
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 4; ++j) {
          mma_bf16(sums[i][j], fragments_a[i], fragments_b[j / 2][j % 2 * 2], fragments_b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
  cp_async_wait<0>();
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 4; ++j) {
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + warp_row + i * 16 + lane / 4 + half * 8;
        const int column = column0 + warp_column + j * 8 + lane % 4 * 2;
        if (row < m && (kBug == GemmBug::kNoColumnBound || column < n)) {
          const __nv_bfloat162 pair = __floats2bfloat162_rn(sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
          *reinterpret_cast<__nv_bfloat162*>(c + row * n + column) = pair;
        }
      }
    }
  }
}

template <GemmBug kBug>
void launch(__nv_bfloat16* c, const __nv_bfloat16* a, const __nv_bfloat16* b, int m, int n, int k) {
  const size_t stages = kBug == GemmBug::kTooLittleSharedMemory ? kStages - 1 : kStages;
  LAUNCH(gemm<kBug>, dim3((n + kColumns - 1) / kColumns, (m + kRows - 1) / kRows), dim3(kThreads),
         stages * (kBytesA + kBytesB), nullptr, c, a, b, m, n, k);
}

}  // namespace

void planted_gemm(GemmBug bug, __nv_bfloat16* c, const __nv_bfloat16* a, const __nv_bfloat16* b, int m, int n, int k) {
  using Launch = decltype(&launch<GemmBug::kNone>);
  constexpr Launch kLaunches[] = {launch<GemmBug::kNone>,
                                  launch<GemmBug::kTooLittleSharedMemory>,
                                  launch<GemmBug::kDepthTailDropped>,
                                  launch<GemmBug::kCopyWithoutPredicate>,
                                  launch<GemmBug::kWaitTooWeak>,
                                  launch<GemmBug::kNoWait>,
                                  launch<GemmBug::kNoBarrier>,
                                  launch<GemmBug::kWrongStageOverwritten>,
                                  launch<GemmBug::kWrongFragmentAddress>,
                                  launch<GemmBug::kNoColumnBound>,
                                  launch<GemmBug::kNoSwizzle>};
  kLaunches[static_cast<int>(bug)](c, a, b, m, n, k);
}

}  // namespace ashlar::emu
