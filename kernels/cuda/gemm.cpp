#include "kernels/cuda/gemm.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/gemm_launch.h"
#include "runtime/base/error.h"

namespace ashlar::kernels::cuda {
namespace {

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

struct Splits {
  int count, depth;
};

// Cuts k where that shortens the way through an A100, which runs 216 tiles at a time: a wave of tiles takes as long as
// its steps, and partial sums cost about as much as 16 steps (they go out to memory and come back). The figures only
// decide how good the choice is; it depends on nothing but the shape.
Splits choose_splits(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kTilesAtOnce = 216;
  constexpr int64_t kPartialSteps = 16;
  constexpr int64_t kMostSplits = 16;
  const int64_t tiles = divide_up(m, kGemmTile) * divide_up(n, kGemmTile);
  const int64_t steps = divide_up(k, kGemmDepth);
  int64_t best_steps_per_split = steps;
  int64_t best_cost = divide_up(tiles, kTilesAtOnce) * steps;
  const int64_t most_splits = std::min(kMostSplits, static_cast<int64_t>(kGemmMostScratchBytes) / (m * n * 4));
  for (int64_t splits = 2; splits <= most_splits; ++splits) {
    const int64_t steps_per_split = divide_up(steps, splits);
    const int64_t cost = divide_up(tiles * splits, kTilesAtOnce) * (steps_per_split + kPartialSteps);
    if (cost < best_cost) {
      best_cost = cost;
      best_steps_per_split = steps_per_split;
    }
  }
  return {static_cast<int>(divide_up(steps, best_steps_per_split)),
          static_cast<int>(best_steps_per_split * kGemmDepth)};
}

bool on_16_bytes(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// Why a call is refused, or null.
const char* refusal(const MatmulCall& call) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const bool to_f32 = call.output == Element::kF32;
  const bool uses_pre = call.epilogue == Epilogue::kBiasActivation || call.epilogue == Epilogue::kActivationBackward;
  if (call.input == Element::kF32) return "operands of 16 bits";
  if (!to_f32 && call.output != call.input) return "a result of the operands' type or fp32";
  if (call.transpose_a && call.transpose_b) return "at most one transposed operand";
  if (to_f32 && call.epilogue != Epilogue::kNone) return "no epilogue with an fp32 result";
  if (call.add && !to_f32) return "an fp32 result to add to";
  if (call.m < 1 || call.n < 1 || call.k < 1) return "m, n and k of at least 1";
  if (call.m > kMost || call.n > kMost || call.k > kMost || divide_up(call.m, kGemmTile) * call.n > kMost) {
    return "fewer rows, columns or tiles";
  }
  if (call.n % 8 != 0 || (call.transpose_a ? call.m : call.k) % 8 != 0) return "rows of a multiple of 8 elements";
  if (!on_16_bytes(call.a) || !on_16_bytes(call.b) || !on_16_bytes(call.c) || !on_16_bytes(call.bias) ||
      !on_16_bytes(call.pre)) {
    return "operands on addresses of a multiple of 16";
  }
  if (call.a == nullptr || call.b == nullptr || call.c == nullptr || (uses_pre && call.pre == nullptr)) {
    return "all operands that the epilogue needs";
  }
  return nullptr;
}

}  // namespace

bool gemm_supports(const MatmulCall& call) {
  return refusal(call) == nullptr;
}

size_t gemm_scratch_bytes(const MatmulCall& call) {
  const Splits splits = choose_splits(call.m, call.n, call.k);
  return splits.count > 1 ? static_cast<size_t>(splits.count * call.m * call.n) * sizeof(float) : 0;
}

void gemm(const MatmulCall& call, Scratch scratch, StreamHandle stream) {
  const char* const wanted = refusal(call);
  REQUIRE(
      wanted == nullptr, ErrorCode::kUsage,
      "--gemm own: the product [{},{}] x [{},{}] (a {}, b {}) needs {}; --gemm auto leaves such products to cuBLASLt",
      call.m, call.k, call.k, call.n, call.transpose_a ? "transposed" : "plain",
      call.transpose_b ? "transposed" : "plain", wanted);
  DCHECK(scratch.bytes >= gemm_scratch_bytes(call) && on_16_bytes(scratch.data), "{} bytes of scratch, {} needed",
         scratch.bytes, gemm_scratch_bytes(call));
  const Splits splits = choose_splits(call.m, call.n, call.k);
  GemmArgs args{};
  args.a = call.a;
  args.b = call.b;
  args.c = call.c;
  args.partial = static_cast<float*>(scratch.data);
  args.bias = call.bias;
  args.pre = call.pre;
  args.m = static_cast<int>(call.m);
  args.n = static_cast<int>(call.n);
  args.k = static_cast<int>(call.k);
  args.num_splits = splits.count;
  args.split_depth = splits.depth;
  args.to_f32 = call.output == Element::kF32;
  args.add = call.add;
  args.epilogue = call.epilogue;
  args.activation = call.activation;
  if (call.transpose_a) {
    launch_gemm_tn(call.input, args, stream);
  } else if (call.transpose_b) {
    launch_gemm_nt(call.input, args, stream);
  } else {
    launch_gemm_nn(call.input, args, stream);
  }
  if (splits.count > 1) {
    launch_gemm_sum_splits(call.input, args, stream);
  }
}

}  // namespace ashlar::kernels::cuda
