// Where gradients meet: across the data axis in buckets, and between the two uses of a tied table.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/matmul.h"
#include "parallel/zero/parameter_store.h"
#include "parallel/zero/tensor_sum.h"

namespace ashlar {

class GradReducer {
 public:
  // `overlap` (--overlap-grad-reduce): a layer's sums are on their way while the next layers compute. Changes no bit.
  GradReducer(const ProcessGrid& grid, Stream& stream, ParameterStore& store, int num_microbatches = 1,
              bool overlap = false);
  // Blocks the host until nothing is on its way.
  ~GradReducer();
  GradReducer(const GradReducer&) = delete;
  GradReducer& operator=(const GradReducer&) = delete;

  // As in ParamSync; collective over tensor and data axis. Behind the last reduce() of a step a stage's gradients are
  // summed over the data ranks and the micro-batches; where the ranks share out the state, each has the sums of what it
  // owns, and the rest is of no use.
  kernels::Write need(int stage, size_t layer, int microbatch);
  void done(int stage, size_t layer, int microbatch);
  void reduce(int stage);

  // Collective over the embedding group: one gradient for both uses of a tied table, embedding first.
  void combine_tied();

 private:
  // Sums of a layer on their way over the data axis.
  struct Reduction {
    const FlatLayer* layer = nullptr;
    kernels::Write write = kernels::Write::kOverwrite;  // of staged gradients into their sums
    std::vector<Work> works;
  };
  TensorView source(const FlatLayer& layer, const FlatBucket& bucket) const;
  void start(Reduction& reduction, const FlatLayer& layer, kernels::Write write);
  void finish(Reduction& reduction);
  size_t index_of(const FlatLayer& layer) const;  // in the layout

  const ProcessGrid& grid_;
  Stream& stream_;
  ParameterStore& store_;
  int num_microbatches_;
  bool overlap_;
  // Where sums between instances wait for the sums within, which the computation does not wait for. Null: one instance.
  std::unique_ptr<Stream> between_;
  // Over the tensor axis, before anything else is done with what layers wrote: behind each micro-batch where gradients
  // are staged, else once a step. Sets are the layers of the layout.
  TensorSum tensor_sum_;
  std::vector<Reduction> reductions_;  // by layer; where gradients meet behind each micro-batch, by layer modulo 2
  // Parts [n] of the gradients of a tied table that this rank owns; empty where a use is elsewhere.
  std::vector<TensorView> tied_first_;
  std::vector<TensorView> tied_copy_;
};

}  // namespace ashlar
