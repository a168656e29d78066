#include "parallel/zero/grad_reducer.h"

#include <algorithm>

#include "kernels/activation.h"

namespace ashlar {
namespace {

TensorView flat(TensorView x) {
  return x.reshaped({x.num_elements()});
}

}  // namespace

GradReducer::GradReducer(const ProcessGrid& grid, Stream& stream, ParameterStore& store, int64_t bucket_elements)
    : grid_(grid),
      stream_(stream),
      store_(store),
      bucket_bytes_(
          std::max<size_t>(Arena::aligned(static_cast<size_t>(bucket_elements) * sizeof(float)), Arena::kAlignment)) {}

void GradReducer::reduce_grads(int stage) {
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

void GradReducer::combine_tied() {
  for (const ParameterStore::Entry& copy : store_.entries()) {
    if (!copy.parameter->tied_copy) {
      continue;
    }
    if (!copy.shares_value) {
      sum_over_embedding_group(copy);  // this is the last stage, the first use lies on another rank
      return;
    }
    for (const ParameterStore::Entry& first : store_.entries()) {
      if (first.parameter->tied_first) {
        kernels::add(flat(first.parameter->grad), flat(copy.parameter->grad), stream_);
        return;
      }
    }
  }
  for (const ParameterStore::Entry& first : store_.entries()) {
    if (first.parameter->tied_first) {
      sum_over_embedding_group(first);
    }
  }
}

void GradReducer::sum_over_embedding_group(const ParameterStore::Entry& entry) {
  grid_.embedding().all_reduce(entry.parameter->grad, ReduceOp::kSum, stream_).wait(stream_);
}

}  // namespace ashlar
