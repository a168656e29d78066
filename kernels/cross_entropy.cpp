#include "kernels/cross_entropy.h"

#include "kernels/checks.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/dispatch.h"
#include "kernels/stat_dtype.h"

namespace ashlar::kernels {
namespace {

// The shard that logits [N,V/t] hold, N = `rows`.
VocabShard checked_shard(std::string_view op, const ConstTensorView& logits, int64_t rows, int64_t vocab_begin,
                         int64_t num_valid) {
  const VocabShard shard{logits.shape[-1], vocab_begin, num_valid};
  check_view(op, "logits", logits, logits.dtype, rows * shard.columns);
  DCHECK(num_valid >= 0 && num_valid <= shard.columns, "{}: {} valid columns of {}", op, num_valid, shard.columns);
  return shard;
}

}  // namespace

void cross_entropy_stats(TensorView stats, ConstTensorView logits, ConstTensorView targets, int64_t vocab_begin,
                         int64_t num_valid, Stream& stream) {
  constexpr std::string_view kOp = "cross_entropy_stats";
  const int64_t rows = targets.num_elements();
  const VocabShard shard = checked_shard(kOp, logits, rows, vocab_begin, num_valid);
  check_view(kOp, "targets", targets, DType::kI32, rows);
  check_view(kOp, "stats", stats, stat_dtype(logits.dtype), rows * 3);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::cross_entropy_stats(element_of(kOp, logits.dtype), stats.as<float>(), logits.data,
                                     targets.as<int32_t>(), rows, shard, gpu->handle());
  }
  with_compute_type(logits.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    using S = cpu::Compute<T>;
    launch(stream, kOp,
           [stats_data = stats.as<S>(), logits_data = logits.as<T>(), target_data = targets.as<int32_t>(), rows,
            shard] { cpu::cross_entropy_stats(stats_data, logits_data, target_data, rows, shard); });
  });
}

void cross_entropy_finish(TensorView losses, TensorView logits, ConstTensorView all_stats, ConstTensorView targets,
                          ConstTensorView mask, int64_t vocab_begin, int64_t num_valid, double scale, bool gradient,
                          Stream& stream) {
  constexpr std::string_view kOp = "cross_entropy_finish";
  const int64_t rows = targets.num_elements();
  const int64_t num_ranks = all_stats.shape[0];
  const VocabShard shard = checked_shard(kOp, logits, rows, vocab_begin, num_valid);
  check_view(kOp, "targets", targets, DType::kI32, rows);
  check_view(kOp, "mask", mask, DType::kF32, rows);
  check_view(kOp, "losses", losses, stat_dtype(logits.dtype), rows);
  check_view(kOp, "all_stats", all_stats, stat_dtype(logits.dtype), num_ranks * rows * 3);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::cross_entropy_finish(element_of(kOp, logits.dtype), losses.as<float>(), logits.data,
                                      all_stats.as<float>(), targets.as<int32_t>(), mask.as<float>(), num_ranks, rows,
                                      shard, scale, gradient, gpu->handle());
  }
  with_compute_type(logits.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    using S = cpu::Compute<T>;
    launch(
        stream, kOp,
        [losses_data = losses.as<S>(), logits_data = logits.as<T>(), stats_data = all_stats.as<S>(),
         target_data = targets.as<int32_t>(), mask_data = mask.as<float>(), num_ranks, rows, shard, scale, gradient] {
          cpu::cross_entropy_finish(losses_data, logits_data, stats_data, target_data, mask_data, num_ranks, rows,
                                    shard, scale, gradient);
        });
  });
}

}  // namespace ashlar::kernels
