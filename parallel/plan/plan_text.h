// The plan of a run for people: one screen of a terminal.
#pragma once

#include <span>
#include <string>

#include "parallel/plan/memory.h"
#include "parallel/plan/traffic.h"

namespace ashlar {

// How long a run takes is a product of what these say; zeros: not asked.
struct TimeQuestion {
  double num_tokens = 0;
  double peak_flops = 0;  // FLOP/s of one rank
  double mfu = 0;         // part of the peak that model FLOPs reach, 0.45
};

// Pure. Model, batch, memory of a rank by kind, traffic, FLOPs, bubble; days where asked. Ends with a newline.
std::string plan_text(const RunShape& shape, const TimeQuestion& time = {});

// Pure. A column per pipeline stage; of more than eight stages the first, the last and the fullest. With a line end.
std::string memory_table(const RunShape& shape, std::span<const RankMemory> stages);

// GB, MB or kB, of 10^9, 10^6 and 10^3 bytes: what numbers up to `largest` are told in.
struct ByteUnit {
  const char* name = "kB";
  double bytes = 1e3;

  // Pure. Whether so many are more than 0.000 of it; less gets no row.
  bool shows(int64_t count) const { return static_cast<double>(count) >= 0.0005 * bytes; }
};
// Pure.
ByteUnit unit_of(int64_t largest);

// Pure. "12.3 GB", in powers of 10; "124.44 M".
std::string memory_text(int64_t bytes);
std::string count_text(double count);

}  // namespace ashlar
