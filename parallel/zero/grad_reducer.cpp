#include "parallel/zero/grad_reducer.h"

#include <algorithm>

#include "kernels/activation.h"

namespace ashlar {
GradReducer::GradReducer(const ProcessGrid& grid, Stream& stream, ParameterStore& store, int64_t bucket_elements)
    : grid_(grid),
      stream_(stream),
      store_(store),
      bucket_bytes_(
          std::max<size_t>(Arena::aligned(static_cast<size_t>(bucket_elements) * sizeof(float)), Arena::kAlignment)) {}

void GradReducer::reduce_grads(int stage) {
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
  const auto& entries = store_.entries();
  for (size_t copy = 0; copy < entries.size(); ++copy) {
    if (!entries[copy].parameter->tied_copy) {
      continue;
    }
    if (!entries[copy].shares_value) {
      sum_over_embedding_group(copy);  // this is the last stage, the first use lies on another rank
      return;
    }
    for (size_t first = 0; first < entries.size(); ++first) {
      if (entries[first].parameter->tied_first) {
        add_copy(first, copy);
        return;
      }
    }
  }
  for (size_t first = 0; first < entries.size(); ++first) {
    if (entries[first].parameter->tied_first) {
      sum_over_embedding_group(first);
    }
  }
}

void GradReducer::add_copy(size_t first, size_t copy) {
  const std::vector<TensorView> to = store_.owned_grads_of_tied(first);
  const std::vector<TensorView> from = store_.owned_grads_of_tied(copy);
  for (size_t part = 0; part < to.size(); ++part) {
    kernels::add(to[part], from[part], stream_);
  }
}

void GradReducer::sum_over_embedding_group(size_t entry) {
  for (const TensorView& part : store_.owned_grads_of_tied(entry)) {
    grid_.embedding().all_reduce(part, ReduceOp::kSum, stream_).wait(stream_);
  }
}

}  // namespace ashlar
