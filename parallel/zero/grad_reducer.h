// Where gradients meet: across the data axis in buckets, and between the two uses of a tied table.
#pragma once

#include "parallel/pipeline/param_sync.h"
#include "parallel/zero/parameter_store.h"

namespace ashlar {

class GradReducer final : public ParamsInPlace {
 public:
  // `bucket_elements` (--ddp-bucket-size) is the largest piece of one all-reduce.
  GradReducer(const ProcessGrid& grid, Stream& stream, ParameterStore& store, int64_t bucket_elements);

  // Collective over the data axis: sums a stage's gradients of a whole step over the data ranks, bucket by bucket.
  // Where they share out the state, the sums reach their owners only; what a rank does not own is of no more use.
  void reduce_grads(int stage, int microbatch) override;

  // Collective over the embedding group: one gradient for both uses of a tied table, embedding first.
  void combine_tied();

 private:
  void reduce_to_owners(int stage);

  const ProcessGrid& grid_;
  Stream& stream_;
  ParameterStore& store_;
  size_t bucket_bytes_;
  // Parts [n] of the gradients of a tied table that this rank owns; empty where a use is elsewhere.
  std::vector<TensorView> tied_first_;
  std::vector<TensorView> tied_copy_;
};

}  // namespace ashlar
