#include "examples/bench_train/op_clock.h"

#include <array>
#include <utility>

namespace ashlar {

std::string OpClock::kind_of(std::string_view op) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kKinds = {{
      {"matmul", "matrix products"},
      {"linear", "matrix products"},
      {"attention", "attention"},
      {"layernorm", "norms"},
      {"cross_entropy", "loss"},
      {"activation", "activations"},
      {"bias_backward", "biases and residuals"},
      {"add", "biases and residuals"},
      {"accumulate", "gradient sums"},
      {"adamw", "optimizer"},
      {"sgd", "optimizer"},
      {"sum_of_squares", "optimizer"},
  }};
  for (const auto& [prefix, kind] : kKinds) {
    if (op.starts_with(prefix)) {
      return std::string(kind);
    }
  }
  return "other kernels";
}

double OpClock::total() const {
  double total = 0;
  for (const auto& [kind, seconds] : seconds_) {
    total += seconds;
  }
  return total;
}

}  // namespace ashlar
