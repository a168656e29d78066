#include "runtime/data/split.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "runtime/base/error.h"

namespace ashlar {

SplitFractions parse_split(const std::string& text) {
  SplitFractions fractions{};
  int count = 0;
  double sum = 0;
  const std::string_view rest(text);
  for (size_t begin = 0; begin <= rest.size();) {
    const size_t end = std::min(rest.find_first_of(",/", begin), rest.size());
    std::string_view word = rest.substr(begin, end - begin);
    word.remove_prefix(std::min(word.find_first_not_of(' '), word.size()));
    word.remove_suffix(word.size() - std::min(word.find_last_not_of(' ') + 1, word.size()));
    double value = -1;
    const auto [stop, status] = std::from_chars(word.data(), word.data() + word.size(), value);
    REQUIRE(count < kNumSplits && status == std::errc() && stop == word.data() + word.size() && std::isfinite(value) &&
                value >= 0,
            ErrorCode::kUsage,
            "--split {}: expected up to three numbers of 0 or more for train, validation and test, such as 969,30,1",
            text);
    fractions[static_cast<size_t>(count++)] = value;
    sum += value;
    begin = end + 1;
  }
  REQUIRE(sum > 0 && std::isfinite(sum), ErrorCode::kUsage, "--split {}: expected a sum above 0, found {}", text, sum);
  for (double& fraction : fractions) {
    fraction /= sum;
  }
  return fractions;
}

std::array<int64_t, kNumSplits + 1> split_bounds(const SplitFractions& fractions, int64_t count) {
  std::array<int64_t, kNumSplits + 1> bounds{};
  double cumulated = 0;
  for (size_t split = 0; split < fractions.size(); ++split) {
    cumulated += fractions[split];
    const auto bound = static_cast<int64_t>(std::nearbyint(cumulated * static_cast<double>(count)));
    bounds[split + 1] = std::min(bound, count);
  }
  return bounds;
}

std::array<TokenRange, kNumSplits> split_tokens(const TokenFile& file, const SplitFractions& fractions) {
  std::array<TokenRange, kNumSplits> ranges;
  bool by_sequences = true;
  const auto sequences = split_bounds(fractions, file.num_sequences());
  for (size_t split = 0; split < fractions.size(); ++split) {
    ranges[split] = {file.sequence_begin(sequences[split]), file.sequence_begin(sequences[split + 1]),
                     "split by sequences"};
    by_sequences = by_sequences && (fractions[split] == 0 || ranges[split].num_tokens() > 0);
  }
  if (!by_sequences) {
    const auto tokens = split_bounds(fractions, file.num_tokens());
    for (size_t split = 0; split < fractions.size(); ++split) {
      ranges[split] = {tokens[split], tokens[split + 1], "split by tokens"};
    }
  }
  return ranges;
}

}  // namespace ashlar
