// What is wrong with batches, the length of a run and its learning rate, and what follows from the data size.
#include <algorithm>
#include <cmath>

#include "parallel/train/options_check.h"

namespace ashlar {
namespace {

int64_t samples_to_steps(const char* flag, int64_t samples, int64_t global_batch_size) {
  REQUIRE(samples >= global_batch_size, ErrorCode::kUsage,
          "--{} {} is less than one step of --global-batch-size {}; nearest legal value: {}", flag, samples,
          global_batch_size, global_batch_size);
  return samples / global_batch_size;
}

// How the warm-up was given, before all of it is steps.
struct WarmUp {
  std::string flag = "lr-warmup-iters";
  std::string value;

  explicit WarmUp(const TrainOptions& o) : value(fmt::format("{}", o.lr_warmup_iters)) {
    if (o.lr_warmup_samples > 0) {
      flag = "lr-warmup-samples";
      value = fmt::format("{}", o.lr_warmup_samples);
    } else if (o.lr_warmup_fraction >= 0) {
      flag = "lr-warmup-fraction";
      value = fmt::format("{}", o.lr_warmup_fraction);
    }
  }
  // The longest warm-up that leaves a step of so many.
  std::string longest(int64_t steps, int64_t global_batch_size) const {
    if (flag == "lr-warmup-samples") {
      return fmt::format("{}", steps * global_batch_size - 1);
    }
    if (flag == "lr-warmup-fraction") {  // half a step is rounded up
      return fmt::format("any below {}", (static_cast<double>(steps) - 0.5) / static_cast<double>(steps));
    }
    return fmt::format("{}", steps - 1);
  }
};

// The flag that says where the decay ends.
std::string decay_text(const TrainOptions& o) {
  const auto text = [](const char* name, int64_t value) { return fmt::format("--{} {}", name, value); };
  return o.lr_decay_samples > 0 ? text("lr-decay-samples", o.lr_decay_samples)
         : o.lr_decay_iters > 0 ? text("lr-decay-iters", o.lr_decay_iters)
         : o.train_samples > 0  ? text("train-samples", o.train_samples)
         : o.train_iters > 0    ? text("train-iters", o.train_iters)
                                : text("verify-layout", o.verify_layout);
}

}  // namespace

void check_length_and_rate(const TrainOptions& o, Problems& problems) {
  const bool required = !o.dry_run;
  problems.add_if(required && o.micro_batch_size == 0, "--micro-batch-size is required");
  problems.add_if(o.train_iters > 0 && o.train_samples > 0,
                  "--train-iters {} and --train-samples {} are both given: give one of them", o.train_iters,
                  o.train_samples);
  problems.add_if(required && o.train_iters == 0 && o.train_samples == 0 && o.verify_layout == 0,
                  "--train-iters (or --train-samples) is required");
  problems.add_if(required && o.lr == 0, "--lr is required");
  problems.add_if(o.lr > 0 && o.min_lr > o.lr, "--min-lr {} is above --lr {}; nearest legal value: {}", o.min_lr, o.lr,
                  o.lr);
  problems.add_if(o.lr_decay_iters > 0 && o.lr_decay_samples > 0,
                  "--lr-decay-iters {} and --lr-decay-samples {} are both given: give one of them", o.lr_decay_iters,
                  o.lr_decay_samples);
  problems.add_if(o.lr > 0 && o.lr_warmup_init > o.lr,
                  "--lr-warmup-init {} is above --lr {}, to which the rate rises; nearest legal value: {}",
                  o.lr_warmup_init, o.lr, o.lr);
  std::vector<std::string> warmups;
  if (o.lr_warmup_iters > 0) {
    warmups.push_back(fmt::format("--lr-warmup-iters {}", o.lr_warmup_iters));
  }
  if (o.lr_warmup_samples > 0) {
    warmups.push_back(fmt::format("--lr-warmup-samples {}", o.lr_warmup_samples));
  }
  if (o.lr_warmup_fraction >= 0) {
    warmups.push_back(fmt::format("--lr-warmup-fraction {}", o.lr_warmup_fraction));
  }
  problems.add_if(warmups.size() > 1, "the warm-up is given more than once ({}): give one of them",
                  fmt::join(warmups, ", "));
}

void resolve_batch(TrainOptions& o) {
  if (o.micro_batch_size == 0) {
    return;  // a dry run without batches
  }
  // Far beyond any memory, and small enough that no product of sizes wraps around.
  constexpr int64_t kMostSamples = int64_t{1} << 31;
  for (const auto& [flag, size] :
       {std::pair("micro-batch-size", o.micro_batch_size), std::pair("global-batch-size", o.global_batch_size)}) {
    REQUIRE(size <= kMostSamples, ErrorCode::kUsage,
            "--{} {}: at most {} samples are possible; nearest legal value: {}", flag, size, kMostSamples,
            kMostSamples);
  }
  // Elements of what a micro-batch fills, all stages and micro-batches of a step in flight; as double, which does not
  // wrap around.
  constexpr double kMostElements = 1e17;
  const auto widest = static_cast<double>(std::max({4 * o.hidden_size, o.ffn_hidden_size, o.vocab_size}));
  const double elements = static_cast<double>(o.micro_batch_size) * static_cast<double>(o.seq_length) * widest;
  REQUIRE(
      elements <= kMostElements, ErrorCode::kUsage,
      "--micro-batch-size {} x --seq-length {} tokens, each as wide as the vocabulary or the widest layer ({:.0f}), "
      "are {:.1g} numbers, more than any memory; nearest legal --micro-batch-size: {:.0f}",
      o.micro_batch_size, o.seq_length, widest, elements,
      std::max(1.0, std::floor(static_cast<double>(o.micro_batch_size) * kMostElements / elements)));
  const int64_t unit = o.micro_batch_size * o.data_parallel_size;
  if (o.global_batch_size == 0) {
    o.global_batch_size = unit;
  }
  REQUIRE(o.global_batch_size % unit == 0, ErrorCode::kUsage,
          "--global-batch-size {} is no multiple of --micro-batch-size {} x data size {} = {} (data size = {} ranks / "
          "tensor {} / pipeline {}); nearest legal --global-batch-size: {}",
          o.global_batch_size, o.micro_batch_size, o.data_parallel_size, unit, o.world_size,
          o.tensor_model_parallel_size, o.pipeline_model_parallel_size, multiples_around(o.global_batch_size, unit));
  o.num_microbatches = o.global_batch_size / unit;
}

void resolve_length(TrainOptions& o) {
  const WarmUp warm_up(o);
  const std::string decay = decay_text(o);
  if (o.global_batch_size > 0) {
    if (o.train_samples > 0) {
      o.train_iters = samples_to_steps("train-samples", o.train_samples, o.global_batch_size);
    }
    if (o.lr_decay_samples > 0) {
      o.lr_decay_iters = samples_to_steps("lr-decay-samples", o.lr_decay_samples, o.global_batch_size);
    }
    if (o.lr_warmup_samples > 0) {
      o.lr_warmup_iters = samples_to_steps("lr-warmup-samples", o.lr_warmup_samples, o.global_batch_size);
    }
    o.train_samples = o.lr_decay_samples = o.lr_warmup_samples = 0;
  }
  if (o.train_iters == 0) {
    o.train_iters = o.verify_layout;
  }
  if (o.lr_decay_iters == 0) {
    o.lr_decay_iters = o.train_iters;
  }
  if (o.lr_warmup_fraction >= 0 && o.lr_decay_iters > 0) {
    o.lr_warmup_iters = std::llround(o.lr_warmup_fraction * static_cast<double>(o.lr_decay_iters));
    o.lr_warmup_fraction = -1;
  }
  REQUIRE(
      o.lr_decay_style == "constant" || o.lr_decay_iters == 0 || o.lr_warmup_iters < o.lr_decay_iters,
      ErrorCode::kUsage,
      "the warm-up of {} steps (--{} {}) leaves nothing of the {} steps in which the rate falls ({}); nearest legal "
      "--{}: {}",
      o.lr_warmup_iters, warm_up.flag, warm_up.value, o.lr_decay_iters, decay, warm_up.flag,
      warm_up.longest(o.lr_decay_iters, o.global_batch_size));
}

}  // namespace ashlar
