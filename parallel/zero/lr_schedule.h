// The learning rate as a pure function of the step, so that a resumed run needs no state to go on with the same
// numbers.
#pragma once

#include <cstdint>
#include <string>

namespace ashlar {

enum class LrDecayStyle { kConstant, kLinear, kCosine };

// Pure. From --lr-decay-style; throws Error(kUsage) listing the styles.
LrDecayStyle parse_lr_decay_style(const std::string& text);

struct LrSchedule {
  double max_lr = 0;         // --lr
  double min_lr = 0;         // --min-lr
  double warmup_init = 0;    // --lr-warmup-init
  int64_t warmup_steps = 0;  // --lr-warmup-iters; 0: starts at max_lr
  int64_t decay_steps = 0;   // --lr-decay-iters, counted from the first step, warm-up included
  LrDecayStyle style = LrDecayStyle::kConstant;

  // Pure. Throws Error(kUsage) that names the flag: negative or not finite rates, min_lr or warmup_init above max_lr,
  // a decay that ends before the warm-up does.
  void check() const;

  // Pure. The rate of update number `step` = 1, 2, ..: optimizer updates done so far plus 1. With W = warmup_steps,
  // D = decay_steps and x = (step - W) / (D - W):
  //   step <= W:      warmup_init + (max_lr - warmup_init) * step / W
  //   constant:       max_lr for ever, without regard to D
  //   step > D:       min_lr
  //   linear:         min_lr + (max_lr - min_lr) * (1 - x)
  //   cosine:         min_lr + (max_lr - min_lr) * (1 + cos(pi x)) / 2
  // These are the formulas of Megatron's OptimizerParamScheduler, and rate(n) is the number its log prints for
  // iteration n. Its optimizer applies that number one update later (its first update uses warmup_init, which is 0 by
  // default and changes nothing); here the number in the log is the one that update n used.
  double rate(int64_t step) const;
};

}  // namespace ashlar
