#include "parallel/zero/grad_reducer.h"

#include <algorithm>

#include "kernels/accumulate.h"

namespace ashlar {
namespace {

std::vector<std::vector<Parameter*>> by_layer(const ParameterStore& store) {
  std::vector<std::vector<Parameter*>> layers;
  for (const FlatLayer& layer : store.layout().layers) {
    auto& parameters = layers.emplace_back();
    for (size_t at = layer.first_tensor; at < layer.end_tensor; ++at) {
      parameters.push_back(store.entries()[at].parameter);
    }
  }
  return layers;
}

}  // namespace

GradReducer::GradReducer(const ProcessGrid& grid, Stream& stream, ParameterStore& store, int num_microbatches,
                         bool overlap)
    : grid_(grid),
      stream_(stream),
      store_(store),
      num_microbatches_(num_microbatches),
      overlap_(overlap),
      between_(grid.num_instances() > 1 ? store.device().create_stream(StreamPriority::kCommunication) : nullptr),
      tensor_sum_(store.device(), grid.tensor(), by_layer(store)) {
  for (size_t at = 0; at < store.entries().size(); ++at) {
    const Parameter& parameter = *store.entries()[at].parameter;
    if (parameter.tied_first || parameter.tied_copy) {
      (parameter.tied_first ? tied_first_ : tied_copy_) = store.owned_grads_of_tied(at);
    }
  }
  const FlatLayout& layout = store.layout();
  size_t most = 0;
  for (const FlatLayer& layer : layout.layers) {
    most = std::max(most, layer.end_bucket - layer.first_bucket);
  }
  reductions_.resize(layout.sharding.each_microbatch ? 2 : layout.layers.size());
  for (Reduction& reduction : reductions_) {
    reduction.works.reserve(most);
  }
}

GradReducer::~GradReducer() {
  try {
    for (Reduction& reduction : reductions_) {
      for (Work& work : reduction.works) {
        work.wait(stream_);
      }
    }
    stream_.synchronize();
  } catch (const std::exception&) {  // a failed job, whose error is on its way
  }
}

kernels::Write GradReducer::need(int, size_t layer, int microbatch) {
  if (store_.sharding().each_microbatch) {
    finish(reductions_[layer % 2]);
  }
  return microbatch == 0 || store_.sharding().stages_grads() ? kernels::Write::kOverwrite : kernels::Write::kAdd;
}

void GradReducer::done(int stage, size_t layer, int microbatch) {
  const FlatLayout& layout = store_.layout();
  const FlatLayer& of = layout.layer_of(stage, layer);
  const kernels::Write write = microbatch == 0 ? kernels::Write::kOverwrite : kernels::Write::kAdd;
  if (layout.sharding.stages_grads()) {
    tensor_sum_.sum(index_of(of), stream_);
  }
  if (layout.sharding.each_microbatch) {
    start(reductions_[layer % 2], of, write);
    if (!overlap_) {
      finish(reductions_[layer % 2]);
    }
    return;
  }
  for (size_t at = of.first_bucket; at < of.end_bucket && layout.sharding.stages_grads(); ++at) {
    kernels::accumulate(store_.grads_of(layout.buckets[at]), store_.staged(of, layout.buckets[at]), write, stream_);
  }
  if (overlap_ && microbatch == num_microbatches_ - 1) {
    start(reductions_[index_of(of)], of, kernels::Write::kOverwrite);
  }
}

void GradReducer::reduce(int stage) {
  const FlatLayout& layout = store_.layout();
  if (layout.sharding.each_microbatch) {
    finish(reductions_[0]);
    finish(reductions_[1]);
    return;
  }
  for (size_t at = layout.layers.size(); at-- > 0;) {
    if (layout.layers[at].stage == stage) {
      if (reductions_[at].layer == nullptr) {
        start(reductions_[at], layout.layers[at], kernels::Write::kOverwrite);
      }
      finish(reductions_[at]);
    }
  }
}

size_t GradReducer::index_of(const FlatLayer& layer) const {
  return static_cast<size_t>(&layer - store_.layout().layers.data());
}

// Where a layer's gradients lie before they are summed.
TensorView GradReducer::source(const FlatLayer& layer, const FlatBucket& bucket) const {
  const Sharding& sharding = store_.sharding();
  return !sharding.each_microbatch ? store_.grads_of(bucket)
         : sharding.grads_in_bf16  ? store_.sent(layer, bucket)
                                   : store_.staged(layer, bucket);
}

void GradReducer::start(Reduction& reduction, const FlatLayer& layer, kernels::Write write) {
  DCHECK(reduction.layer == nullptr, "layer {} of stage {} in the place of another", layer.layer, layer.stage);
  reduction.layer = &layer;
  reduction.write = write;
  const FlatLayout& layout = store_.layout();
  if (!layout.sharding.stages_grads()) {
    tensor_sum_.sum(index_of(layer), stream_);
  }
  for (size_t at = layer.first_bucket; at < layer.end_bucket; ++at) {
    const TensorView grads = source(layer, layout.buckets[at]);
    if (layout.sharding.each_microbatch && layout.sharding.grads_in_bf16) {
      kernels::accumulate(grads, store_.staged(layer, layout.buckets[at]), kernels::Write::kOverwrite, stream_);
    }
    if (!layout.sharding.cuts_state()) {
      reduction.works.push_back(grid_.data().all_reduce(grads, ReduceOp::kSum, stream_));
      continue;
    }
    const TensorView sums = store_.own_part(grads);
    Work work = grid_.shard().reduce_scatter(sums, grads, ReduceOp::kSum, stream_);
    if (between_ != nullptr) {
      work.wait(*between_);
      work = grid_.replicate().all_reduce(sums, ReduceOp::kSum, *between_);
    }
    reduction.works.push_back(work);
  }
}

void GradReducer::finish(Reduction& reduction) {
  if (reduction.layer == nullptr) {
    return;
  }
  const FlatLayer& layer = *reduction.layer;
  const FlatLayout& layout = store_.layout();
  for (size_t at = layer.first_bucket; at < layer.end_bucket; ++at) {
    reduction.works[at - layer.first_bucket].wait(stream_);
    if (layout.sharding.each_microbatch) {
      const FlatBucket& bucket = layout.buckets[at];
      kernels::accumulate(store_.own_grads_of(bucket), store_.own_part(source(layer, bucket)), reduction.write,
                          stream_);
    }
  }
  reduction.works.clear();
  reduction.layer = nullptr;
}

void GradReducer::combine_tied() {
  // Where both uses are here, the copy's gradient goes into the first's; else each meets the other's rank.
  const bool both = !tied_first_.empty() && !tied_copy_.empty();
  const std::vector<TensorView>& parts = tied_first_.empty() ? tied_copy_ : tied_first_;
  for (size_t at = 0; at < parts.size(); ++at) {
    if (both) {
      kernels::accumulate(parts[at], tied_copy_[at], kernels::Write::kAdd, stream_);
    } else {
      grid_.embedding().all_reduce(parts[at], ReduceOp::kSum, stream_).wait(stream_);
    }
  }
}

}  // namespace ashlar
