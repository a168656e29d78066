#include "parallel/zero/loss_scaler.h"

#include <algorithm>

namespace ashlar {

LossScaler::LossScaler(const LossScaleConfig& config)
    : config_(config), state_{.scale = config.initial, .hysteresis_left = config.hysteresis} {}

void LossScaler::step_done(bool overflowed) {
  if (!overflowed) {
    state_.skips_at_floor = 0;
    if (config_.dynamic && ++state_.good_steps >= config_.window) {
      state_.good_steps = 0;
      state_.hysteresis_left = config_.hysteresis;
      state_.scale = std::min(2 * state_.scale, kLargestLossScale);
    }
    return;
  }
  state_.skips_at_floor += state_.scale <= floor() ? 1 : 0;
  if (config_.dynamic) {
    state_.good_steps = 0;
    state_.hysteresis_left = std::max<int64_t>(state_.hysteresis_left - 1, 0);
    if (state_.hysteresis_left == 0) {
      state_.scale = std::max(state_.scale / 2, config_.min);
    }
  }
}

void LossScaler::restore(const State& saved) {
  if (!config_.dynamic) {
    state_.skips_at_floor = saved.skips_at_floor;
    return;
  }
  state_ = saved;
  state_.scale = std::clamp(saved.scale, config_.min, kLargestLossScale);
  state_.hysteresis_left = std::clamp<int64_t>(saved.hysteresis_left, 0, config_.hysteresis);
}

}  // namespace ashlar
