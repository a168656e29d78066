// What the --test-... options ask for, and what is wrong with it.
#include <algorithm>

#include "parallel/train/flags.h"
#include "parallel/train/options_check.h"

namespace ashlar {
namespace {

std::vector<std::pair<std::string, std::string>> fault_flags(const TrainOptions& o) {
  return {{"test-hang", o.test_hang},
          {"test-nan", o.test_nan},
          {"test-overflow", o.test_overflow},
          {"test-write-fault", o.test_write_fault},
          {"test-offload-fault", o.test_offload_fault}};
}

bool counts_steps(const std::string& flag) {
  return flag == "test-hang" || flag == "test-nan" || flag == "test-overflow";
}

}  // namespace

std::optional<TestPoint> parse_test_point(const std::string& flag, const std::string& text) {
  if (text.empty()) {
    return std::nullopt;
  }
  TestPoint point;
  std::vector<std::string> seen;
  for (size_t start = 0; start <= text.size();) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string part = text.substr(start, comma - start);
    const size_t equals = std::min(part.find('='), part.size());
    const std::string key = part.substr(0, equals), value = part.substr(std::min(equals + 1, part.size()));
    const auto number = parse_integer(value);
    const bool natural = number && *number >= 0;
    bool known = true;
    if (key == "rank" && natural && *number < 1'000'000) {
      point.rank = static_cast<int>(*number);
    } else if (key == "step" && natural && counts_steps(flag)) {
      point.step = *number;
    } else if (key == "point" && flag == "test-hang") {
      point.point = value;
      known = value == "all-reduce" || value == "receive" || value == "checkpoint";
    } else if (key == "tensor" && flag == "test-overflow") {
      point.tensor = value;
      known = !value.empty();
    } else if (key == "bytes" && natural && (flag == "test-write-fault" || flag == "test-offload-fault")) {
      point.bytes = *number;
    } else if (key == "file" && flag == "test-offload-fault") {
      point.file = value;
      known = value == "optimizer" || value == "param";
    } else if (key == "kill" && (value == "0" || value == "1") && flag == "test-write-fault") {
      point.kill = value == "1";
    } else {
      known = false;
    }
    REQUIRE(known, ErrorCode::kUsage, "--{} expects {}, got '{}' ('{}' has no place there{})", flag,
            find_flag(flag)->value, text, part,
            key == "point" && flag == "test-hang" ? "; points are all-reduce, receive and checkpoint" : "");
    REQUIRE(!std::ranges::count(seen, key), ErrorCode::kUsage, "--{} expects {}, got '{}' ({} stands there twice)",
            flag, find_flag(flag)->value, text, key);
    seen.push_back(key);
    start = comma + 1;
  }
  const std::vector<std::string> needed = flag == "test-hang"  ? std::vector<std::string>{"rank", "step", "point"}
                                          : counts_steps(flag) ? std::vector<std::string>{"rank", "step"}
                                                               : std::vector<std::string>{"rank", "bytes"};
  for (const std::string& key : needed) {
    REQUIRE(std::ranges::count(seen, key), ErrorCode::kUsage, "--{} expects {}, got '{}' ({} is missing)", flag,
            find_flag(flag)->value, text, key);
  }
  return point;
}

void check_faults(const TrainOptions& o, Problems& problems) {
  for (const auto& [flag, text] : fault_flags(o)) {
    std::optional<TestPoint> point;
    try {
      point = parse_test_point(flag, text);
    } catch (const Error& error) {
      problems.add(error.what());
    }
    if (!point) {
      continue;
    }
    // A fault that cannot come would make a run look as if it had stood the test.
    problems.add_if(o.verify_layout > 0, "--{} does nothing with --verify-layout; leave one of them out", flag);
    problems.add_if(counts_steps(flag) && point->step == 0, "--{} {}: the first step is 1; nearest legal value: step=1",
                    flag, text);
    problems.add_if(point->point == "receive" && o.pipeline_model_parallel_size == 1,
                    "--{} {}: with --pipeline-model-parallel-size 1 no rank receives anything; nearest legal value: "
                    "point=all-reduce",
                    flag, text);
    problems.add_if((point->point == "checkpoint" || flag == "test-write-fault") && o.save.empty(),
                    "--{} {} needs --save DIR: without it no checkpoint is written", flag, text);
    const bool of_weights = point->file == "param";
    problems.add_if(
        flag == "test-offload-fault" && (of_weights ? o.offload_param_device : o.offload_optimizer_device) != "nvme",
        "--{} {} needs --offload-{}-device nvme: without it that file does not exist", flag, text,
        of_weights ? "param" : "optimizer");
  }
}

void check_faults_of_world(const TrainOptions& o) {
  // Where a run that goes on from a checkpoint begins, nobody knows yet.
  const bool ends_early = o.exit_interval > 0 && o.load.empty() && o.exit_interval < o.train_iters;
  const int64_t last_step = ends_early ? o.exit_interval : o.train_iters;
  for (const auto& [flag, text] : fault_flags(o)) {
    const std::optional<TestPoint> point = parse_test_point(flag, text);
    if (!point) {
      continue;
    }
    REQUIRE(point->rank < o.world_size, ErrorCode::kUsage,
            "--{} {}: there is no rank {} among {} rank{}; nearest legal value: rank={}", flag, text, point->rank,
            o.world_size, o.world_size == 1 ? "" : "s", o.world_size - 1);
    REQUIRE(!counts_steps(flag) || last_step == 0 || point->step <= last_step, ErrorCode::kUsage,
            "--{} {}: the run ends with step {} ({}); nearest legal value: step={}", flag, text, last_step,
            ends_early ? "--exit-interval" : "--train-iters or --train-samples", last_step);
  }
}

}  // namespace ashlar
