#include "runtime/metrics/metrics.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

namespace ashlar {
namespace {

std::string local_time_text(std::chrono::system_clock::time_point when) {
  // Rounded down by hand: to_time_t may round to nearest.
  const auto whole_seconds = std::chrono::floor<std::chrono::seconds>(when);
  const std::time_t seconds = std::chrono::system_clock::to_time_t(whole_seconds);
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(when - whole_seconds).count();
  std::tm local{};
  localtime_r(&seconds, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:06d}", local, micros);
}

}  // namespace

double ValidationMetrics::perplexity() const {
  return std::exp(std::isnan(loss) ? loss : std::min(loss, 20.0));
}

std::string console_line(const StepMetrics& m, std::chrono::system_clock::time_point when) {
  std::string line = fmt::format(" [{}] iteration {:8d}/{:8d} |", local_time_text(when), m.step, m.total_steps);
  line += fmt::format(" consumed samples: {:12d} |", m.consumed_samples);
  line += fmt::format(" elapsed time per iteration (ms): {:.1f} |", m.step_time_s * 1000.0);
  if (m.model_tflops > 0) {  // Megatron's digits, or three where they would show none
    line += fmt::format(" throughput per GPU (TFLOP/s/GPU): {} |", m.model_tflops >= 10
                                                                       ? fmt::format("{:.1f}", m.model_tflops)
                                                                       : fmt::format("{:.3g}", m.model_tflops));
  }
  line += fmt::format(" learning rate: {:.6E} |", m.learning_rate);
  line += fmt::format(" global batch size: {:5d} |", m.global_batch_size);
  line += fmt::format(" lm loss: {:.6E} |", m.loss);
  line += fmt::format(" loss scale: {:.1f} |", m.loss_scale);
  line += fmt::format(" grad norm: {:.3f} |", m.grad_norm);
  line += fmt::format(" number of skipped iterations: {:3d} |", m.num_skipped);
  line += fmt::format(" number of nan iterations: {:3d} |", m.num_nan);
  return line;
}

std::string validation_lines(const ValidationMetrics& m) {
  const std::string text =
      fmt::format(" validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ", m.step, m.loss,
                  m.perplexity());
  const std::string dashes(text.size() + 1, '-');
  return fmt::format("{}\n{}\n{}", dashes, text, dashes);
}

}  // namespace ashlar
