// --metrics-file: one JSON object per line, for programs to read while the job runs and after it.
//
//   {"kind":"train","step":1,"loss":5.54,"grad_norm":..,"learning_rate":..,"consumed_samples":..,"consumed_tokens":..,
//    "step_time_s":..,"tokens_per_s":..,"model_tflops":..,"flop_formula":"..","weight_hash":["0123456789abcdef",..]}
//   in fp16 also "loss_scale":..,"skipped_iterations":..,"nan_iterations":.. (since the run's first step)
//   {"kind":"validation","step":100,"loss":..,"perplexity":..}
//   {"kind":"run","step":0,"device":"CPU","ranks":4,"grid":"..","parameters":..,
//    "precision":"bf16","zero_stage":1,"grad_reduce":"step"}                           at each start
//   {"kind":"memory","step":100,"rank":0,"planned_bytes":..,"peak_bytes":..,
//    "items":[{"name":"gradients","on_host":false,"planned_bytes":..,"peak_bytes":..},..]}    at the end
//
// Numbers round-trip. JSON has no NaN and no infinity: they are the strings "nan", "inf" and "-inf".
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "runtime/metrics/metrics.h"

namespace ashlar {

class MetricsFile {
 public:
  // Blocks the host. Opens `path` for the lines after `resumed_step` (0: a fresh run). Lines of later steps, which a
  // run that was killed after its last checkpoint leaves behind, are cut off, and so is a torn last line; a file that
  // does not hold metrics is refused and left alone. Throws Error(kUsage) that names --metrics-file.
  MetricsFile(std::filesystem::path path, int64_t resumed_step);

  // Blocks the host. Appends one line and flushes it. Throws Error(kUsage) when the disk refuses it.
  void write(const StepMetrics& metrics);
  void write(const ValidationMetrics& metrics);
  void write(const RunMetrics& metrics);
  void write(const MemoryMetrics& metrics);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  void write_line(const std::string& line);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace ashlar
