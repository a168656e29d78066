// The factor on the loss in fp16 training: large enough that small gradients of activations do not become 0, small
// enough that large ones stay finite. It follows the steps' outcomes alone, which are the same on every rank.
#pragma once

#include <cstdint>

namespace ashlar {

// Legal scales: far beyond what fp16 gradients can use, and fp32 holds all of them and their inverses.
inline constexpr double kSmallestLossScale = 0x1p-20;
inline constexpr double kLargestLossScale = 0x1p64;

struct LossScaleConfig {
  bool dynamic = false;    // false: the scale stays as it is
  double initial = 1;      // 1: no scale at all
  double min = 1;          // dynamic: never below
  int64_t window = 1000;   // dynamic: doubled behind so many steps without overflow
  int64_t hysteresis = 2;  // dynamic: halved from this overflow on, counted from the last time that it was doubled
};

// Megatron's rule (DynamicGradScaler): an overflow sets the row of good steps to 0 and uses up hysteresis; once that is
// used up, every overflow halves the scale. `window` good steps in a row double it and fill hysteresis up again.
class LossScaler {
 public:
  // So many overflows in a row at a scale that cannot fall any more end a run: the scale is not what is wrong.
  static constexpr int64_t kMostSkipsAtFloor = 10;

  // What a checkpoint keeps.
  struct State {
    double scale = 1;
    int64_t good_steps = 0;  // in a row, since the last overflow or doubling
    int64_t hysteresis_left = 0;
    int64_t skips_at_floor = 0;  // in a row

    bool operator==(const State&) const = default;
  };

  explicit LossScaler(const LossScaleConfig& config);

  double scale() const { return state_.scale; }  // of the next step
  // Behind a step at scale().
  void step_done(bool overflowed);
  bool is_at_end() const { return state_.skips_at_floor >= kMostSkipsAtFloor; }
  double floor() const { return config_.dynamic ? config_.min : config_.initial; }

  const State& state() const { return state_; }
  // Goes on from a saved state, as far as the configuration allows: a scale that does not move stays as configured.
  void restore(const State& saved);

 private:
  LossScaleConfig config_;
  State state_;
};

}  // namespace ashlar
