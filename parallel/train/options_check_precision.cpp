// What is wrong with devices, precisions and loss scales, and what a dynamic loss scale is made of.
#include <fmt/ranges.h>

#include <cmath>

#include "parallel/train/options_check.h"

namespace ashlar {
namespace {

// What a dynamic loss scale is made of, as far as it was given.
std::vector<std::string> dynamic_scale_flags(const TrainOptions& o, bool without_neutral) {
  std::vector<std::string> flags;
  const auto add = [&](const char* name, auto value, auto neutral) {
    if (value != 0 && !(without_neutral && value == neutral)) {
      flags.push_back(fmt::format("--{} {}", name, value));
    }
  };
  add("initial-loss-scale", o.initial_loss_scale, kDefaultInitialLossScale);
  if (o.initial_scale_power) {
    flags.push_back(fmt::format("--initial-scale-power {}", *o.initial_scale_power));
  }
  add("min-loss-scale", o.min_loss_scale, kDefaultMinLossScale);
  add("loss-scale-window", o.loss_scale_window, kDefaultLossScaleWindow);
  add("hysteresis", o.hysteresis, kDefaultHysteresis);
  return flags;
}

double initial_loss_scale(const TrainOptions& o) {
  return o.initial_scale_power       ? std::ldexp(1.0, static_cast<int>(*o.initial_scale_power))
         : o.initial_loss_scale != 0 ? o.initial_loss_scale
                                     : kDefaultInitialLossScale;
}

}  // namespace

void check_device(const TrainOptions& o, Problems& problems) {
  problems.add_if(o.device == "cuda" && o.distributed_backend == "mpi",
                  "--device cuda and --distributed-backend mpi contradict each other: MPI carries host memory; give "
                  "--distributed-backend nccl or staged, or --device cpu");
  problems.add_if(o.device == "cpu" && !o.distributed_backend.empty() && o.distributed_backend != "mpi",
                  "--device cpu and --distributed-backend {} contradict each other: {} carries memory of GPUs; give "
                  "--distributed-backend mpi, or --device cuda",
                  o.distributed_backend, o.distributed_backend);
  problems.add_if(o.gemm == "own" && !o.bf16 && !o.fp16,
                  "--gemm own needs --bf16 or --fp16: our kernels take 16-bit operands; give --gemm auto or cublaslt "
                  "for fp32");
  problems.add_if(o.allow_tf32 && (o.bf16 || o.fp16),
                  "--allow-tf32 and --{} contradict each other: TF32 is about products of fp32 operands; give one of "
                  "them",
                  o.bf16 ? "bf16" : "fp16");
}

void check_loss_scale(const TrainOptions& o, Problems& problems) {
  problems.add_if(o.bf16 && o.fp16, "--bf16 and --fp16 contradict each other: give one of them");
  if (!o.fp16) {
    // Scripts of other systems carry Megatron's defaults along.
    std::vector<std::string> flags = dynamic_scale_flags(o, true);
    if (o.loss_scale != 0 && o.loss_scale != 1) {
      flags.insert(flags.begin(), fmt::format("--loss-scale {}", o.loss_scale));
    }
    problems.add_if(!flags.empty(), "{} without --fp16: fp32 and --bf16 need no loss scale; leave it out",
                    fmt::join(flags, ", "));
    return;
  }
  const std::vector<std::string> flags = dynamic_scale_flags(o, false);
  problems.add_if(
      o.loss_scale != 0 && !flags.empty(),
      "--loss-scale {} is a static scale, and {} belong to a dynamic one: leave out the former or the latter",
      o.loss_scale, fmt::join(flags, ", "));
  problems.add_if(o.initial_loss_scale != 0 && o.initial_scale_power,
                  "--initial-loss-scale {} and --initial-scale-power {} (2^{}) are two names for one setting: give one "
                  "of them",
                  o.initial_loss_scale, o.initial_scale_power.value_or(0), o.initial_scale_power.value_or(0));
  const double initial = initial_loss_scale(o);
  const double least = o.min_loss_scale != 0 ? o.min_loss_scale : kDefaultMinLossScale;
  problems.add_if(o.loss_scale == 0 && least > initial,
                  "--min-loss-scale {}{} is above the first loss scale {} ({}); nearest legal --min-loss-scale: {}",
                  least, o.min_loss_scale != 0 ? "" : ", the default,", initial,
                  o.initial_scale_power      ? fmt::format("--initial-scale-power {}", *o.initial_scale_power)
                  : o.initial_loss_scale > 0 ? "--initial-loss-scale"
                                             : "the default of --initial-loss-scale",
                  initial);
}

void resolve_loss_scale(TrainOptions& o) {
  if (!o.fp16 || o.loss_scale != 0) {
    return;
  }
  o.initial_loss_scale = initial_loss_scale(o);
  o.initial_scale_power.reset();
  o.min_loss_scale = o.min_loss_scale != 0 ? o.min_loss_scale : kDefaultMinLossScale;
  o.loss_scale_window = o.loss_scale_window != 0 ? o.loss_scale_window : kDefaultLossScaleWindow;
  o.hysteresis = o.hysteresis != 0 ? o.hysteresis : kDefaultHysteresis;
}

}  // namespace ashlar
