// How one data set becomes train, validation and test.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "runtime/data/token_file.h"

namespace ashlar {

constexpr int kNumSplits = 3;
constexpr std::array<const char*, kNumSplits> kSplitNames = {"train", "valid", "test"};
using SplitFractions = std::array<double, kNumSplits>;  // they add up to 1

// Pure. "969,30,1" (also with blanks or slashes; missing ones are 0), scaled to the sum 1. Throws Error(kUsage).
SplitFractions parse_split(const std::string& text);

// Pure. Megatron's boundaries: round(cumulated fraction * count), halves to the even number.
std::array<int64_t, kNumSplits + 1> split_bounds(const SplitFractions& fractions, int64_t count);

struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  const char* rule = "whole";  // how it was cut, for the log
  int64_t num_tokens() const { return end - begin; }
};

// Pure. Cuts at sequence boundaries as Megatron does. When that leaves a split of non-zero fraction without any token
// (one long document, a stream without an index), it cuts by tokens instead; the ranges' `rule` says which it was.
std::array<TokenRange, kNumSplits> split_tokens(const TokenFile& file, const SplitFractions& fractions);

}  // namespace ashlar
