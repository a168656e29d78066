// A small legal run, and how tests ask for the message of a refusal.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "parallel/train/options.h"
#include "runtime/base/error.h"

namespace ashlar {

inline std::vector<std::string> legal_args(const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"--num-layers", "8",     "--hidden-size",      "48", "--num-attention-heads", "12",
                                   "--seq-length", "16",    "--micro-batch-size", "2",  "--train-iters",         "20",
                                   "--lr",         "0.001", "--mock-data"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

inline TrainOptions legal_options(const std::vector<std::string>& more = {}) {
  return parse_train_options(legal_args(more)).options;
}

class TomlFile {
 public:
  explicit TomlFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / fmt::format("ashlar_options_{}.toml", getpid())) {
    std::ofstream(path_) << text;
  }
  ~TomlFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// The message of the Error(kUsage) that `action` throws; a test failure when it throws none.
inline std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

// Refusals of arguments added to the legal ones, by the parser and by the checks on `world_size` ranks.
inline std::string parse_refusal(const std::vector<std::string>& more) {
  return refusal([&] { parse_train_options(legal_args(more)); });
}
inline std::string resolve_refusal(const std::vector<std::string>& more, int world_size = 1) {
  return refusal([&] { resolve_options(legal_options(more), world_size); });
}

}  // namespace ashlar
