// The numbers of one training step, and the lines that show them on a console.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace ashlar {

struct StepMetrics {
  int64_t step = 0;  // optimizer updates done, this one included
  int64_t total_steps = 0;
  int64_t consumed_samples = 0;  // since the first step of the run, resumes included
  int64_t consumed_tokens = 0;
  int64_t global_batch_size = 0;  // samples
  int64_t num_skipped = 0;        // steps since the last line whose update was skipped
  int64_t num_nan = 0;            // steps since the last line whose loss was not finite
  int64_t total_skipped = 0;      // the same since the first step of the run
  int64_t total_nan = 0;
  double loss = 0;           // mean over counted targets
  double grad_norm = 0;      // before clipping
  double learning_rate = 0;  // the one this update used
  double loss_scale = 1.0;   // of the next step, as Megatron shows it
  bool scales_loss = false;  // fp16: the metrics file has the loss scale and what was skipped
  double step_time_s = 0;
  double tokens_per_s = 0;              // of the whole job
  double model_tflops = 0;              // TFLOP/s per rank; 0: unknown
  std::string flop_formula;             // which formula model_tflops stands on
  std::vector<uint64_t> weight_hashes;  // one per world rank; empty unless --check-weight-hash
};

struct ValidationMetrics {
  int64_t step = 0;
  double loss = 0;

  // exp(min(loss, 20)): Megatron's cap, which keeps the number printable.
  double perplexity() const;
};

// Where a run stands when it starts.
struct RunMetrics {
  int64_t step = 0;    // updates done before it
  std::string device;  // of rank 0
  int num_ranks = 1;
  std::string grid;
  int64_t num_parameters = 0;
  std::string precision;  // of weights and activations: fp32, bf16, fp16
  int zero_stage = 0;
  std::string grad_reduce;  // when gradients are reduced: step, micro-batch
};

// Memory of the rank that held most of it, when a run ends.
struct MemoryMetrics {
  struct Item {
    std::string name;
    bool on_host = false;  // memory of the host, not of the device
    int64_t planned_bytes = 0;
    int64_t peak_bytes = 0;
  };
  int64_t step = 0;
  int rank = 0;
  int64_t planned_bytes = 0;  // of the device
  int64_t peak_bytes = 0;
  int64_t planned_disk_bytes = 0;  // of offloaded state and values
  int64_t disk_bytes = 0;
  std::vector<Item> items;
};

// Pure. Megatron's line, without a newline; the throughput part only where model_tflops is known. `when` is shown in
// local time with microseconds.
std::string console_line(const StepMetrics& metrics, std::chrono::system_clock::time_point when);

// Pure. Megatron's three lines (dashes, text, dashes), separated by newlines and without one at the end.
std::string validation_lines(const ValidationMetrics& metrics);

}  // namespace ashlar
