#include "parallel/zero/lr_schedule.h"

#include <cmath>
#include <numbers>

#include "runtime/base/error.h"

namespace ashlar {

LrDecayStyle parse_lr_decay_style(const std::string& text) {
  if (text == "constant") return LrDecayStyle::kConstant;
  if (text == "linear") return LrDecayStyle::kLinear;
  if (text == "cosine") return LrDecayStyle::kCosine;
  throw Error(ErrorCode::kUsage,
              fmt::format("--lr-decay-style {}: no such style; known: constant, linear, cosine", text));
}

void LrSchedule::check() const {
  REQUIRE(std::isfinite(max_lr) && max_lr >= 0, ErrorCode::kUsage, "--lr {}: must be a number of at least 0", max_lr);
  REQUIRE(std::isfinite(min_lr) && min_lr >= 0 && min_lr <= max_lr, ErrorCode::kUsage,
          "--min-lr {}: must lie between 0 and --lr {}", min_lr, max_lr);
  REQUIRE(std::isfinite(warmup_init) && warmup_init >= 0 && warmup_init <= max_lr, ErrorCode::kUsage,
          "--lr-warmup-init {}: must lie between 0 and --lr {}", warmup_init, max_lr);
  REQUIRE(warmup_steps >= 0, ErrorCode::kUsage, "--lr-warmup-iters {}: must be at least 0", warmup_steps);
  if (style == LrDecayStyle::kConstant) return;
  REQUIRE(
      decay_steps > warmup_steps, ErrorCode::kUsage,
      "--lr-warmup-iters {} must be smaller than --lr-decay-iters {} (which is --train-iters where it is not given); "
      "the nearest legal value is {}",
      warmup_steps, decay_steps, decay_steps > 0 ? decay_steps - 1 : 0);
}

double LrSchedule::rate(int64_t step) const {
  DCHECK(step >= 1, "step {} of a learning-rate schedule, which counts from 1", step);
  if (step <= warmup_steps) {
    return warmup_init + (max_lr - warmup_init) * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  if (style == LrDecayStyle::kConstant) return max_lr;
  if (step > decay_steps) return min_lr;
  const double done = static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps - warmup_steps);
  const double left = style == LrDecayStyle::kLinear ? 1.0 - done : 0.5 * (std::cos(std::numbers::pi * done) + 1.0);
  return min_lr + left * (max_lr - min_lr);
}

}  // namespace ashlar
