#include "parallel/zero/grad_reducer.h"

#include <algorithm>

#include "kernels/activation.h"

namespace ashlar {
GradReducer::GradReducer(const ProcessGrid& grid, Stream& stream, ParameterStore& store, int64_t bucket_elements)
    : grid_(grid),
      stream_(stream),
      store_(store),
      bucket_bytes_(
          std::max<size_t>(Arena::aligned(static_cast<size_t>(bucket_elements) * sizeof(float)), Arena::kAlignment)) {
  for (size_t at = 0; at < store.entries().size(); ++at) {
    const Parameter& parameter = *store.entries()[at].parameter;
    if (parameter.tied_first || parameter.tied_copy) {
      (parameter.tied_first ? tied_first_ : tied_copy_) = store.owned_grads_of_tied(at);
    }
  }
}

void GradReducer::reduce_grads(int stage, int microbatch) {
  DCHECK(microbatch < 0, "stage {}: gradients of micro-batch {} alone are not reduced", stage, microbatch);
  if (store_.is_sharded()) {
    reduce_to_owners(stage);
    return;
  }
  for (const ParameterStore::StageRange& range : store_.stage_ranges()) {
    if (range.stage != stage) {
      continue;
    }
    for (size_t begin = range.begin; begin < range.end; begin += bucket_bytes_) {
      const TensorView bucket = store_.grads(begin, std::min(begin + bucket_bytes_, range.end));
      grid_.data().all_reduce(bucket, ReduceOp::kSum, stream_).wait(stream_);
    }
  }
}

void GradReducer::reduce_to_owners(int stage) {
  for (const FlatBucket& bucket : store_.layout().buckets) {
    if (bucket.stage == stage) {
      const TensorView grads = store_.bucket_grads(bucket);
      grid_.data().reduce_scatter(store_.own_part(grads), grads, ReduceOp::kSum, stream_).wait(stream_);
    }
  }
}

void GradReducer::combine_tied() {
  // Where both uses are here, the copy's gradient goes into the first's; else each meets the other's rank.
  const bool both = !tied_first_.empty() && !tied_copy_.empty();
  const std::vector<TensorView>& parts = tied_first_.empty() ? tied_copy_ : tied_first_;
  for (size_t at = 0; at < parts.size(); ++at) {
    if (both) {
      kernels::add(parts[at], tied_copy_[at], stream_);
    } else {
      grid_.embedding().all_reduce(parts[at], ReduceOp::kSum, stream_).wait(stream_);
    }
  }
}

}  // namespace ashlar
