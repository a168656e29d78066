// Between gemm.cpp, which checks a call and plans it, and the kernels of gemm_*.cu.
#pragma once

#include "kernels/cuda/matmul_call.h"
#include "kernels/cuda/stream_handle.h"

namespace ashlar::kernels::cuda {

// The tile of c that a block computes, and the depth of one step.
inline constexpr int kGemmTile = 128;
inline constexpr int kGemmDepth = 32;

// A MatmulCall as kernels read it. With more than one split, tiles go to `partial` [num_splits,m,n] instead of to c.
struct GemmArgs {
  const void* a;
  const void* b;
  void* c;
  float* partial;
  const void* bias;
  void* pre;
  int m, n, k;
  int num_splits, split_depth;  // a split sums split_depth of k, a multiple of kGemmDepth; the last one what is left
  bool to_f32, add;
  Epilogue epilogue;
  Activation activation;
};

// Stream-ordered, all of them. By how a and b lie in memory: n as they are written in a [m,k] b [k,n], t transposed.
void launch_gemm_nt(Element element, const GemmArgs& args, StreamHandle stream);
void launch_gemm_nn(Element element, const GemmArgs& args, StreamHandle stream);
void launch_gemm_tn(Element element, const GemmArgs& args, StreamHandle stream);
// Adds up `partial` and does what a tile without splits does with its sums.
void launch_gemm_sum_splits(Element element, const GemmArgs& args, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
