// What bench_train trains: its own flags, and the settings of pretrain_gpt that they stand for.
#pragma once

#include <string>
#include <vector>

#include "parallel/train/options.h"
#include "runtime/data/dataset.h"

namespace ashlar {

struct BenchOptions {
  int64_t seq_length = 0;  // 0: chosen by what is measured
  int64_t micro_batch_size = 0;
  int64_t accumulate = 0;
  int steps = 5;
  bool data_parallel = false;
  std::string device = "cpu";
  std::string model = "124m";
  double peak_tflops = 0;
  std::vector<std::string> flags;    // of pretrain_gpt, for all that is measured
  std::vector<std::string> compare;  // each more flags of pretrain_gpt, in one text
};

// Pure. The names that --model takes.
std::vector<std::string> model_names();

// Pure. Resolved settings for so many ranks, with `more` flags of pretrain_gpt. Throws Error(kUsage).
TrainOptions train_options(const BenchOptions& bench, int num_ranks, const std::string& more = "");

MockSource source_of(const TrainOptions& options);

}  // namespace ashlar
