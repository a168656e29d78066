// The kernel of our matrix products: a block of four warps computes a tile of 128 x 128, each warp 64 x 64 of it, in
// steps of depth 32 that come through shared memory in four stages of cp.async.
//
// Why these sizes: per step of depth 16 a warp of 64 x 64 reads 4 KB for 32 mma, which takes 3/4 of the time that the
// tensor cores of an A100 need for them; warps of 64 x 32 would be held up by shared memory. Two blocks share an SM.
#pragma once

#include "kernels/cuda/gemm_epilogue.cuh"

namespace ashlar::kernels::cuda {

inline constexpr int kGemmThreads = 128;
inline constexpr int kGemmStages = 4;
inline constexpr int kGemmWarpTile = 64;
inline constexpr int kGemmOperandBytes = kGemmTile * kGemmDepth * 2;
inline constexpr int kGemmSharedBytes = kGemmStages * 2 * kGemmOperandBytes;
static_assert(kGemmSharedBytes == kGemmTile * kGemmTile * 4, "the tile in fp32 takes the place of the stages");

// How an operand lies in memory: consecutive elements run along k, or across it, along m or n ("lines" of the operand).
enum class Stored { kAlongDepth, kAcrossDepth };

// Where 16 bytes of an operand lie in its 8 KB of a stage. Along: 128 lines of 4 chunks; across: 32 rows of 16. Chunks
// are exchanged within a row so that the 8 rows that ldmatrix reads at once lie in different banks.
template <Stored kStored>
DEVICE_INLINE uint32_t chunk_offset(int row, int chunk) {
  if (kStored == Stored::kAlongDepth) {
    return static_cast<uint32_t>(row * 64 + (chunk ^ (row >> 1 & 3)) * 16);
  }
  return static_cast<uint32_t>(row * 256 + (chunk ^ (row & 7)) * 16);
}

// One thread's share of copying an operand: four chunks a step, kRowStep rows apart.
template <typename T, Stored kStored>
class Copier {
 public:
  // Lines [first_line, num_lines) and depths [first, last) exist; what lies beyond is filled with zeros.
  DEVICE_INLINE Copier(const void* operand, int thread, int first_line, int num_lines, int first, int last,
                       int num_depths) {
    const int row = thread / kChunks;
    const int chunk = thread % kChunks;
    target_ = chunk_offset<kStored>(row, chunk);
    if (kStored == Stored::kAlongDepth) {
      stride_ = num_depths;
      source_ = static_cast<const T*>(operand) + static_cast<int64_t>(first_line + row) * stride_ + first + chunk * 8;
      lines_left_ = num_lines - first_line - row;
      depths_left_ = last - first - chunk * 8;
    } else {
      stride_ = num_lines;
      source_ = static_cast<const T*>(operand) + static_cast<int64_t>(first + row) * stride_ + first_line + chunk * 8;
      lines_left_ = num_lines - first_line - chunk * 8;
      depths_left_ = lines_left_ > 0 ? last - first - row : 0;
    }
  }

  // Starts the copies of one step to `stage` and moves on to the next.
  DEVICE_INLINE void copy(uint32_t stage) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool exists =
          kStored == Stored::kAlongDepth ? lines_left_ > i * kRowStep && depths_left_ > 0 : depths_left_ > i * kRowStep;
      cp_async16(stage + target_ + static_cast<uint32_t>(i * kRowStep * kChunks * 16),
                 source_ + static_cast<int64_t>(i * kRowStep) * stride_, exists);
    }
    source_ += kStored == Stored::kAlongDepth ? int64_t{kGemmDepth} : static_cast<int64_t>(kGemmDepth) * stride_;
    depths_left_ -= kGemmDepth;
  }

 private:
  static constexpr int kChunks = kStored == Stored::kAlongDepth ? 4 : 16;
  static constexpr int kRowStep = kGemmThreads / kChunks;  // a multiple of 8, so all four chunks are exchanged alike

  const T* source_;
  int stride_;
  int lines_left_, depths_left_;
  uint32_t target_;
};

// One lane's addresses of the fragments of 64 lines. Everything that depends on the lane is computed once; a step adds
// the stage.
template <Stored kStored, bool kIsA>
class FragmentReader {
 public:
  DEVICE_INLINE FragmentReader(int first_line, int lane) {
    // Lane l gives a row of matrix l / 8. The matrices of a go down the lines first, those of b along the depth, and in
    // operands stored across the depth the two change places.
    const bool lines_first = kIsA == (kStored == Stored::kAlongDepth);
    const int row = lines_first ? lane % 16 : lane % 8 + lane / 16 * 8;
    const int chunk = lines_first ? lane / 16 : lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < kOffsets; ++i) {
      offsets_[i] = kStored == Stored::kAlongDepth ? chunk_offset<kStored>(first_line + row, i * 2 + chunk)
                                                   : chunk_offset<kStored>(row, first_line / 8 + i * 2 + chunk);
    }
  }

  // The fragments at depths [16 half, 16 half + 16). Of a: fragments[i] is 16 lines, whole. Of b: it is two n-tiles of
  // 8 lines, two registers each.
  DEVICE_INLINE void load(uint32_t (&fragments)[4][4], uint32_t tile, int half) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (kStored == Stored::kAlongDepth) {
        ldmatrix_x4(fragments[i], tile + offsets_[half] + static_cast<uint32_t>(i * 16 * 64));
      } else {
        ldmatrix_x4_trans(fragments[i], tile + offsets_[i] + static_cast<uint32_t>(half * 16 * 256));
      }
    }
  }

 private:
  // Sixteen rows further on chunks are exchanged alike; two chunks further on they are not.
  static constexpr int kOffsets = kStored == Stored::kAlongDepth ? 2 : 4;
  uint32_t offsets_[kOffsets];
};

DEVICE_INLINE void mma(__nv_bfloat16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_bf16(d, a, b0, b1);
}
DEVICE_INLINE void mma(__half, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_f16(d, a, b0, b1);
}

// A warp's sums in shared memory: 64 rows of 16 chunks of four floats. Chunks are exchanged so that neither the writes
// of accumulators (4 rows at once) nor the reads of one or two chunks per lane meet in a bank.
DEVICE_INLINE float* staged(float* sums, int row, int chunk) {
  return sums + (row * 16 + (chunk ^ chunk >> 3 ^ (row & 7) << 1)) * 4;
}

// The first row and column of a block's tile. Blocks that run at the same time form groups of 8 tiles in m, so that
// they share rows of a and columns of b in the L2 cache.
DEVICE_INLINE int2 tile_origin(int block, int m, int n) {
  constexpr int kGroup = 8;
  const int tiles_m = (m + kGemmTile - 1) / kGemmTile;
  const int tiles_n = (n + kGemmTile - 1) / kGemmTile;
  const int first = block / (kGroup * tiles_n) * kGroup;
  const int rows = min(tiles_m - first, kGroup);
  const int within = block % (kGroup * tiles_n);
  return make_int2((first + within % rows) * kGemmTile, within / rows * kGemmTile);
}

template <typename T, Stored kStoredA, Stored kStoredB>
__global__ void __launch_bounds__(kGemmThreads, 2) gemm_kernel(GemmArgs args) {
  SMEM_DYN(shared);
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int2 origin = tile_origin(blockIdx.x, args.m, args.n);
  const int warp_row = warp / 2 * kGemmWarpTile;
  const int warp_column = warp % 2 * kGemmWarpTile;
  const int first_depth = blockIdx.y * args.split_depth;
  const int last_depth = min(first_depth + args.split_depth, args.k);
  const int num_steps = (last_depth - first_depth + kGemmDepth - 1) / kGemmDepth;

  const uint32_t stages = smem_u32(shared);
  Copier<T, kStoredA> copy_a(args.a, thread, origin.x, args.m, first_depth, last_depth, args.k);
  Copier<T, kStoredB> copy_b(args.b, thread, origin.y, args.n, first_depth, last_depth, args.k);
  const auto copy_step = [&](uint32_t stage) {
    copy_a.copy(stage);
    copy_b.copy(stage + kGemmOperandBytes);
    cp_async_commit();
  };
  const FragmentReader<kStoredA, true> read_a(warp_row, lane);
  const FragmentReader<kStoredB, false> read_b(warp_column, lane);
  uint32_t a[2][4][4], b[2][4][4];
  const auto load_half = [&](uint32_t stage, int half) {
    read_a.load(a[half], stage, half);
    read_b.load(b[half], stage + kGemmOperandBytes, half);
  };
  float sums[4][8][4] = {};
  const auto multiply_half = [&](int half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        mma(T(), sums[i][j], a[half][i], b[half][j / 2][j % 2 * 2], b[half][j / 2][j % 2 * 2 + 1]);
      }
    }
  };

  // Steps beyond the last are copied as zeros and never multiplied, which saves the loop its conditions.
  constexpr uint32_t kStageBytes = 2 * kGemmOperandBytes;
#pragma unroll
  for (int stage = 0; stage < kGemmStages - 1; ++stage) {
    copy_step(stages + stage * kStageBytes);
  }
  cp_async_wait<kGemmStages - 2>();
  __syncthreads();
  uint32_t read = 0;
  uint32_t write = (kGemmStages - 1) * kStageBytes;
  const auto next = [](uint32_t at) { return at + kStageBytes == kGemmSharedBytes ? 0 : at + kStageBytes; };
  load_half(stages, 0);
  for (int step = 0; step < num_steps; ++step) {
    // The stage that is written was read before the last barrier.
    load_half(stages + read, 1);
    copy_step(stages + write);
    multiply_half(0);
    cp_async_wait<kGemmStages - 2>();
    __syncthreads();
    read = next(read);
    write = next(write);
    load_half(stages + read, 0);
    multiply_half(1);
  }

  // Through shared memory, so that lanes hold consecutive elements.
  cp_async_wait<0>();
  __syncthreads();
  float* const staging = reinterpret_cast<float*>(shared) + warp * kGemmWarpTile * kGemmWarpTile;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* const at = staged(staging, i * 16 + h * 8 + lane / 4, j * 2 + lane % 4 / 2) + lane % 2 * 2;
        *reinterpret_cast<float2*>(at) = make_float2(sums[i][j][h * 2], sums[i][j][h * 2 + 1]);
      }
    }
  }
  __syncwarp();
  const bool is_partial = args.num_splits > 1;
  if (is_partial || args.to_f32) {
    float* const c =
        is_partial ? args.partial + static_cast<int64_t>(blockIdx.y) * args.m * args.n : static_cast<float*>(args.c);
    const int chunk = lane % 16;
    const int column = origin.y + warp_column + chunk * 4;
#pragma unroll 4
    for (int row = lane / 16; row < kGemmWarpTile; row += 2) {
      const int line = origin.x + warp_row + row;
      if (line < args.m && column < args.n) {
        finish_four(c, args.add && !is_partial, *reinterpret_cast<const float4*>(staged(staging, row, chunk)),
                    static_cast<int64_t>(line) * args.n + column);
      }
    }
  } else {
    const int chunk = lane % 8 * 2;
    const int column = origin.y + warp_column + chunk * 4;
#pragma unroll 1
    for (int row = lane / 8; row < kGemmWarpTile; row += 4) {
      const int line = origin.x + warp_row + row;
      if (line < args.m && column < args.n) {
        const auto low = *reinterpret_cast<const float4*>(staged(staging, row, chunk));
        const auto high = *reinterpret_cast<const float4*>(staged(staging, row, chunk + 1));
        finish_eight<T>(args, {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}},
                        static_cast<int64_t>(line) * args.n + column, column);
      }
    }
  }
}

template <Stored kStoredA, Stored kStoredB>
void launch_gemm(Element element, const GemmArgs& args, StreamHandle stream) {
  const auto tiles = [](int lines) { return static_cast<unsigned>((lines + kGemmTile - 1) / kGemmTile); };
  const dim3 grid(tiles(args.m) * tiles(args.n), static_cast<unsigned>(args.num_splits));
  if (element == Element::kBf16) {
    LAUNCH((gemm_kernel<__nv_bfloat16, kStoredA, kStoredB>), grid, dim3(kGemmThreads), kGemmSharedBytes, stream, args);
  } else {
    LAUNCH((gemm_kernel<__half, kStoredA, kStoredB>), grid, dim3(kGemmThreads), kGemmSharedBytes, stream, args);
  }
}

}  // namespace ashlar::kernels::cuda
