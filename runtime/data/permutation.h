// A random order of [0, n) as a formula: no array, whatever n.
#pragma once

#include <cstdint>

#include "runtime/base/rng.h"

namespace ashlar {

// One permutation of [0, n) per (seed, stream, epoch). A Feistel network with Philox as its round function permutes the
// next power of four; results beyond n are sent through again until they fall below it ("cycle walking": Black and
// Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, section 3), fewer than 4 times on average.
class Permutation {
 public:
  // n from 1 to 2^62. The result is part of what a checkpoint's data position means: it must never change.
  Permutation(uint64_t seed, uint64_t stream, int64_t n);

  // Pure.
  int64_t at(int64_t epoch, int64_t k) const;

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t n_;
  int half_bits_;
};

}  // namespace ashlar
