// What a run tells people and programs: start, steps, validation, checkpoints, end. Only rank 0 speaks.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "parallel/train/training.h"
#include "runtime/data/open_datasets.h"
#include "runtime/metrics/metrics_file.h"
#include "runtime/metrics/progress.h"

namespace ashlar {

class RunReport {
 public:
  RunReport(Training& training, const DataSources& data);

  // Collective when --check-weight-hash is on. Call behind every step.
  void step(const StepResult& result);
  void validation(double loss);
  void saved(const std::string& directory, int64_t iteration);
  void already_done();  // a finished run, started again
  // Collective. How the run ended, and its memory as planned and as taken.
  void finish(int stop_signal, int64_t saved_iteration);

  // Pure. The message that ends a run at a step whose outcome must_end(). `where` is find_non_finite()'s.
  std::string describe_end(const StepResult& result, const std::string& where) const;

 private:
  using Clock = std::chrono::steady_clock;
  std::string describe_non_finite(const StepResult& result, const std::string& where) const;
  std::string describe_scale_at_floor(const StepResult& result, const std::string& where) const;
  void print(const std::string& text);  // stdout, around the progress line
  template <typename Metrics>
  void write_metrics(const Metrics& metrics);

  Training& training_;
  bool speaks_;
  std::optional<MetricsFile> file_;
  Progress progress_;
  // Totals of the state at the last console line.
  int64_t shown_nan_;
  int64_t shown_skipped_;
  double flops_per_token_;
  Clock::time_point step_start_ = Clock::now();
  // Since the last console line.
  int64_t num_steps_ = 0;
  double seconds_ = 0;
  double loss_sum_ = 0;
  bool first_ = true;
  std::optional<double> last_validation_;
};

}  // namespace ashlar
