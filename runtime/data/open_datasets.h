// From the user's data flags to the three sample sources.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/data/dataset.h"

namespace ashlar {

struct DataOptions {
  // Megatron's three forms: one path, "p1 p2 ..." or "w1 p1 w2 p2 ...". A path is what open_token_file takes.
  std::vector<std::string> data_path;        // --data-path, cut by --split
  std::vector<std::string> train_data_path;  // --train-data-path, --valid-data-path, --test-data-path: taken whole
  std::vector<std::string> valid_data_path;
  std::vector<std::string> test_data_path;
  std::string split = "969,30,1";
  bool mock_data = false;
  bool need_valid = true;  // a source that is not needed is not opened, and cannot be too short
  bool need_test = false;
  SampleOptions samples;
};

struct DataSources {
  std::unique_ptr<SampleSource> train;
  std::unique_ptr<SampleSource> valid;  // null when not needed, or when its fraction of --split is 0 or path is absent
  std::unique_ptr<SampleSource> test;
  // Equal on two ranks when they were given the same data and data flags, wherever the files lie.
  uint64_t fingerprint = 0;
};

// Blocks the host: checks every index. Throws Error(kUsage) about flags and Error(kData) about files.
DataSources open_datasets(const DataOptions& options);

struct WeightedPaths {
  std::vector<std::string> paths;
  std::vector<double> weights;  // empty: none given
};
// Pure. Weights are given when every first of a pair is a number.
WeightedPaths parse_data_path(const std::vector<std::string>& entries);

}  // namespace ashlar
