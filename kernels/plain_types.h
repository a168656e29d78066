// Types of the kernel contracts that sources for other compilers read too: no include but the standard's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ashlar::kernels {

// What .cu files know instead of DType.
enum class Element { kF32, kBf16, kF16 };

// The stream's own scratch memory: free again when the kernel is done.
struct Scratch {
  void* data = nullptr;
  size_t bytes = 0;
};

// Dropout of attention probabilities. Element (sample, head, query, key) is kept when word key % 4 of
// philox_4x32_10(counter {key / 4, query, head, sample}, key) is at least probability * 2^32, and kept values are
// scaled by 1 / (1 - probability). All four are indices of the whole run (the sample's modulo 2^32), so a mask depends
// neither on the grid nor on how a kernel cuts its work, and backward makes it again instead of reading it.
struct Dropout {
  double probability = 0;    // in [0, 1); 0: no element is dropped, and nothing below is read
  uint32_t key[2] = {0, 0};  // of seed, step and layer
  int64_t first_sample = 0;  // the sample of batch index 0
  int64_t first_head = 0;    // the head of head index 0

  // Pure. The smallest word that keeps an element.
  uint32_t threshold() const {
    const double exact = probability * 4294967296.0;
    const auto below = static_cast<uint64_t>(exact);
    const uint64_t least = below + (static_cast<double>(below) < exact ? 1 : 0);
    return static_cast<uint32_t>(least < 0xFFFFFFFFu ? least : 0xFFFFFFFFu);
  }
  // Pure. The factor of kept elements.
  double keep_scale() const { return 1.0 / (1.0 - probability); }
};

// Which rows [n,C] of a micro-batch [B,T,C] a kernel is given: row i is position (first + i) % length of sample
// (first + i) / length. All of them begin at 0; a rank that holds a part begins at the first of its own.
struct SampleRows {
  int64_t first = 0;
  int64_t length = 0;  // T
};

// GELU (Hendrycks and Gimpel, arXiv:1606.08415): x * Phi(x) by erf, or the tanh form of section 2, which GPT-2 uses.
enum class Activation { kGeluTanh, kGeluErf };

// The widest row that LayerNorm takes on a GPU: 24 values for each of the 512 threads of the largest block that can
// hold backward's sums in registers.
inline constexpr int64_t kMaxLayernormColumns = 12288;

// Elements per block of sum_of_squares.
inline constexpr int64_t kNormBlock = 4096;

// The columns of logits that one rank holds: global columns [vocab_begin, vocab_begin + num_valid), then padding up to
// `columns`.
struct VocabShard {
  int64_t columns;
  int64_t vocab_begin;
  int64_t num_valid;
};

// Who multiplies matrices on a GPU (--gemm): kAuto takes our own kernel where it saves a pass over memory.
enum class GemmKind { kAuto, kCublasLt, kOwn };

struct KernelOptions {
  GemmKind gemm = GemmKind::kAuto;
  bool allow_tf32 = false;  // fp32 products of operands rounded to 11 bits (--allow-tf32)
};

// One update, as far as the host knows it when it is queued.
struct StepSettings {
  double nominal_targets = 0;  // gradients were accumulated as sums over targets divided by this
  double clip_grad = 0;        // largest norm; 0: no limit
  double rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  int64_t step = 1;  // 1 for the first update
  bool skip_not_finite = true;
};

// What finish_step leaves in device memory, fp64: mean loss, norm of the mean gradient before clipping, counted
// targets, and 1 while all was finite.
enum StepResultIndex { kStepLoss, kStepGradNorm, kStepNumTargets, kStepFinite, kNumStepResults };

// What finish_step tells the updates, fp64 in device memory. An update rounds each to the type of its parameters once.
enum UpdateScalarIndex {
  kFactor,  // on gradients: to the mean, and clipped
  kBeta1,
  kBeta2,
  kOneMinusBeta1,
  kOneMinusBeta2,
  kRate,
  kCorrectedRate,   // rate / (1 - beta1^step)
  kRootCorrection,  // 1 / sqrt(1 - beta2^step)
  kEpsilon,
  kSkip,  // 1: nothing is updated
  kNumUpdateScalars
};

}  // namespace ashlar::kernels
