// Rules between settings, by subject: options_check_SUBJECT.cpp. All of them are reported together.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "parallel/train/options.h"
#include "runtime/base/error.h"

namespace ashlar {

inline constexpr int64_t kByteVocabulary = 257;  // 256 bytes and the document end

// Collects what is wrong, so that one run shows the user all of it.
class Problems {
 public:
  template <typename... Args>
  void add_if(bool wrong, fmt::format_string<Args...> text, Args&&... args) {
    if (wrong) {
      lines_.push_back(fmt::format(text, std::forward<Args>(args)...));
    }
  }
  void add(const std::string& line) { lines_.push_back(line); }
  // In the user's words.
  void raise(const TrainOptions& options) const {
    if (!lines_.empty()) {
      throw Error(ErrorCode::kUsage, in_users_words(options, fmt::format("{}", fmt::join(lines_, "\n"))));
    }
  }

 private:
  std::vector<std::string> lines_;
};

// "24 or 32": the multiples of step on both sides of value, without 0.
inline std::string multiples_around(int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  return below > 0 ? fmt::format("{} or {}", below, below + step) : fmt::format("{}", below + step);
}

// Pure. What can be seen without knowing the number of ranks.
void check_model(const TrainOptions& o, Problems& problems);
void check_grid(const TrainOptions& o, Problems& problems);
void check_recompute(const TrainOptions& o, Problems& problems);
void check_sharding(const TrainOptions& o, Problems& problems);
void check_offload(const TrainOptions& o, Problems& problems);
void check_device(const TrainOptions& o, Problems& problems);
void check_loss_scale(const TrainOptions& o, Problems& problems);
void check_length_and_rate(const TrainOptions& o, Problems& problems);
void check_data(const TrainOptions& o, Problems& problems);
void check_files_and_run(const TrainOptions& o, Problems& problems);
void check_faults(const TrainOptions& o, Problems& problems);

// Pure. Fill in what follows from the number of ranks, in this order. Throw Error(kUsage).
void check_faults_of_world(const TrainOptions& o);   // of a resolved run
void resolve_grid(TrainOptions& o, int world_size);  // data_parallel_size
void resolve_batch(TrainOptions& o);
void resolve_length(TrainOptions& o);
void resolve_loss_scale(TrainOptions& o);

}  // namespace ashlar
