// Vocabulary-split cross-entropy on a GPU; the contract is kernels/cross_entropy.h. Logits are of `element`.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

void cross_entropy_stats(Element element, float* stats, const void* logits, const int32_t* targets, int64_t rows,
                         VocabShard shard, StreamHandle stream);
void cross_entropy_finish(Element element, float* losses, void* logits, const float* all_stats, const int32_t* targets,
                          const float* mask, int64_t num_ranks, int64_t rows, VocabShard shard, double scale,
                          bool gradient, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
