// What the --test-... options ask for, and what is wrong with it.
#include <algorithm>

#include "parallel/train/flags.h"
#include "parallel/train/options_check.h"

namespace ashlar {

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
    } else if (key == "step" && natural && (flag == "test-hang" || flag == "test-nan" || flag == "test-overflow")) {
      point.step = *number;
    } else if (key == "point" && flag == "test-hang") {
      point.point = value;
      known = value == "all-reduce" || value == "receive" || value == "checkpoint";
    } else if (key == "tensor" && flag == "test-overflow") {
      point.tensor = value;
      known = !value.empty();
    } else if (key == "bytes" && natural && (flag == "test-write-fault" || flag == "test-offload-fault")) {
      point.bytes = *number;
    } else if (key == "kill" && (value == "0" || value == "1") && flag == "test-write-fault") {
      point.kill = value == "1";
    } else {
      known = false;
    }
    REQUIRE(known, ErrorCode::kUsage, "--{} expects {}, got '{}' ('{}' has no place there)", flag,
            find_flag(flag)->value, text, part);
    seen.push_back(key);
    start = comma + 1;
  }
  const bool in_step = flag == "test-nan" || flag == "test-overflow";
  const std::vector<std::string> needed = flag == "test-hang" ? std::vector<std::string>{"rank", "step", "point"}
                                          : in_step           ? std::vector<std::string>{"rank", "step"}
                                                              : std::vector<std::string>{"rank", "bytes"};
  for (const std::string& key : needed) {
    REQUIRE(std::ranges::count(seen, key) == 1, ErrorCode::kUsage,
            "--{} expects {}, got '{}' ({} must stand there once)", flag, find_flag(flag)->value, text, key);
  }
  return point;
}

void check_faults(const TrainOptions& o, Problems& problems) {
  const std::pair<const char*, const std::string*> points[] = {{"test-hang", &o.test_hang},
                                                               {"test-nan", &o.test_nan},
                                                               {"test-overflow", &o.test_overflow},
                                                               {"test-write-fault", &o.test_write_fault}};
  for (const auto& [flag, text] : points) {
    try {
      parse_test_point(flag, *text);
    } catch (const Error& error) {
      problems.add(error.what());
    }
  }
}

}  // namespace ashlar
