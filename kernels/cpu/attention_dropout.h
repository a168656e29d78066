// Dropout of attention probabilities on the CPU: the factors 0 and 1 / (1 - probability) of kernels/plain_types.h, made
// for a panel of queries at a time so that Philox vectorises over them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/philox_lanes.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cpu {

// The mask of one head of one sample.
struct HeadDropout {
  uint32_t key[2];
  uint32_t head, sample;
  uint32_t threshold;
  double keep_scale;

  HeadDropout(const Dropout& dropout, int64_t batch_index, int64_t head_index)
      : key{dropout.key[0], dropout.key[1]},
        head(static_cast<uint32_t>(dropout.first_head + head_index)),
        sample(static_cast<uint32_t>(dropout.first_sample + batch_index)),
        threshold(dropout.threshold()),
        keep_scale(dropout.keep_scale()) {}
};

// words [4, kWidth] = philox_4x32_10 of counters {key_group, first_query + c, head, sample}.
template <int kWidth>
void dropout_words(uint32_t (&words)[4][kWidth], const HeadDropout& dropout, uint32_t key_group, uint32_t first_query) {
  for (int c = 0; c < kWidth; ++c) {
    words[0][c] = key_group;
    words[1][c] = first_query + static_cast<uint32_t>(c);
    words[2][c] = dropout.head;
    words[3][c] = dropout.sample;
  }
  philox_lanes(words, dropout.key[0], dropout.key[1]);
}

// Calls row(k, factors [kWidth]) for keys first_key + [0, keys), ascending, and queries first_query + [0, kWidth).
// first_key is a multiple of 4.
template <typename T, int kWidth, typename Row>
void for_each_factor_row(const HeadDropout& dropout, int64_t first_key, int keys, int64_t first_query, Row row) {
  const T keep_scale = static_cast<T>(dropout.keep_scale);
  for (int first = 0; first < keys; first += 4) {
    uint32_t words[4][kWidth];
    dropout_words(words, dropout, static_cast<uint32_t>((first_key + first) / 4), static_cast<uint32_t>(first_query));
    for (int i = 0; i < std::min(4, keys - first); ++i) {
      T factors[kWidth];
      for (int c = 0; c < kWidth; ++c) {
        factors[c] = words[i][c] >= dropout.threshold ? keep_scale : T(0);
      }
      row(first + i, factors);
    }
  }
}

}  // namespace ashlar::kernels::cpu
