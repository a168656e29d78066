// A model tiny enough for emulated GPUs, whose kernels are some thousand times slower than real ones, and the ranks on
// them.
#pragma once

#include "tests/parallel/train/run_trace.h"

namespace ashlar::test {

inline TrainOptions model_xxs() {
  TrainOptions options = tiny_options();
  options.num_layers = 2;
  options.hidden_size = 32;
  options.num_attention_heads = 2;
  options.ffn_hidden_size = 64;
  options.seq_length = 16;
  options.vocab_size = 19;
  options.make_vocab_size_divisible_by = 1;
  options.global_batch_size = 4;
  return options;
}

inline TinySource source_of(const TrainOptions& options) {
  return TinySource(options.seq_length, options.vocab_size);
}

inline ThreadRankOptions on_gpus(DeviceBackend backend) {
  return {.timeout_seconds = 300, .device = {.kind = DeviceKind::kCuda, .backend = backend}};
}

inline std::string name_of(DeviceBackend backend) {
  return backend == DeviceBackend::kNccl ? "nccl" : "staged";
}

inline constexpr double kLoss = 1e-5, kNorm = 1e-4;

}  // namespace ashlar::test
