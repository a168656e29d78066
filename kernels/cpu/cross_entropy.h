// Vocabulary-split cross-entropy on the CPU; the contract is kernels/cross_entropy.h. T is float, double, BFloat16 or
// Float16.
#pragma once

#include <cstdint>

#include "kernels/cpu/element.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cpu {

template <typename T>
void cross_entropy_stats(Compute<T>* stats, const T* logits, const int32_t* targets, int64_t rows, VocabShard shard);

template <typename T>
void cross_entropy_finish(Compute<T>* losses, T* logits, const Compute<T>* all_stats, const int32_t* targets,
                          const float* mask, int64_t num_ranks, int64_t rows, VocabShard shard, double scale,
                          bool gradient);

}  // namespace ashlar::kernels::cpu
