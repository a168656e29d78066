#include "parallel/zero/flat_layout.h"

#include <algorithm>

#include "kernels/plain_types.h"
#include "kernels/stat_dtype.h"
#include "runtime/base/error.h"

namespace ashlar {
namespace {

// 64 bytes of the narrowest values, where no block of the norm has to begin.
constexpr int64_t kTensorUnit = 32;

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Lays a layer out behind what is there: tensors that follow each other share a row of buckets, a tied table stands
// alone in its own.
void add_layer(FlatLayout& layout, std::span<const FlatTensor> tensors, size_t first, size_t last) {
  const Sharding& sharding = layout.sharding;
  const int64_t tensor_unit = sharding.num_shards > 1 ? kernels::kNormBlock : kTensorUnit;
  const int64_t unit = sharding.num_shards * tensor_unit;
  const int64_t most = round_up(std::max<int64_t>(sharding.bucket_elements, 1), unit);
  FlatLayer layer{.stage = tensors[first].stage,
                  .layer = tensors[first].layer,
                  .begin = layout.num_elements,
                  .end = layout.num_elements,
                  .first_bucket = layout.buckets.size(),
                  .end_bucket = 0,
                  .first_tensor = first,
                  .end_tensor = last};
  for (size_t at = first; at < last;) {
    const size_t row = at;
    const int64_t begin = layer.end;
    do {
      layout.offsets.push_back(layer.end);
      layer.end += round_up(tensors[at].num_elements, tensor_unit);
      ++at;
    } while (at < last && !tensors[row].is_tied && !tensors[at].is_tied);
    layer.end = begin + round_up(layer.end - begin, unit);
    const bool has_value = !tensors[row].shares_value;
    DCHECK(has_value || at == tensors.size(), "tensor {} of {} shares a value", row, tensors.size());
    int64_t value_begin = begin;
    if (has_value) {
      layout.num_value_elements = layer.end;
    } else {
      const auto use = std::ranges::find_if(tensors, &FlatTensor::is_tied);
      value_begin = layout.offsets[static_cast<size_t>(use - tensors.begin())];
    }
    for (int64_t bucket = begin; bucket < layer.end; bucket += most) {
      layout.buckets.push_back({.begin = bucket,
                                .end = std::min(bucket + most, layer.end),
                                .value_begin = value_begin + bucket - begin,
                                .first_tensor = row,
                                .has_value = has_value});
    }
  }
  layer.end_bucket = layout.buckets.size();
  const bool follows = !layout.layers.empty() && layout.layers.back().stage == layer.stage;
  layout.num_pair_elements = std::max(
      layout.num_pair_elements, layer.num_elements() + (follows ? layout.layers.back().num_elements() : int64_t{0}));
  layout.num_elements = layer.end;
  layout.layers.push_back(layer);
}

}  // namespace

FlatLayout lay_out_flat(std::span<const FlatTensor> tensors, const Sharding& sharding) {
  FlatLayout layout;
  layout.sharding = sharding;
  for (size_t first = 0; first < tensors.size();) {
    size_t last = first + 1;
    while (last < tensors.size() && tensors[last].stage == tensors[first].stage &&
           tensors[last].layer == tensors[first].layer) {
      ++last;
    }
    add_layer(layout, tensors, first, last);
    first = last;
  }
  return layout;
}

const FlatLayer& FlatLayout::layer_of(int stage, size_t layer) const {
  const auto found =
      std::ranges::find_if(layers, [&](const FlatLayer& at) { return at.stage == stage && at.layer == layer; });
  DCHECK(found != layers.end(), "stage {} has no layer {} here", stage, layer);
  return *found;
}

std::vector<FlatPiece> owned_pieces(const FlatLayout& layout, std::span<const FlatTensor> tensors, int shard) {
  std::vector<FlatPiece> pieces;
  if (layout.sharding.num_shards == 1) {
    for (size_t at = 0; at < tensors.size(); ++at) {
      pieces.push_back({at, 0, tensors[at].num_elements, layout.offsets[at]});
    }
    return pieces;
  }
  size_t tensor = 0;
  for (const FlatBucket& bucket : layout.buckets) {
    const int64_t share = bucket.num_elements() / layout.sharding.num_shards;
    const int64_t begin = bucket.begin + shard * share;
    const int64_t owned = bucket.begin / layout.sharding.num_shards;
    while (tensor < tensors.size() && layout.offsets[tensor] + tensors[tensor].num_elements <= begin) {
      ++tensor;
    }
    for (size_t at = tensor; at < tensors.size() && layout.offsets[at] < begin + share; ++at) {
      const int64_t from = std::max(begin, layout.offsets[at]);
      const int64_t to = std::min(begin + share, layout.offsets[at] + tensors[at].num_elements);
      if (from < to) {
        pieces.push_back({at, from - layout.offsets[at], to - layout.offsets[at], owned + from - begin});
      }
    }
  }
  return pieces;
}

DType grad_dtype(const Sharding& sharding, DType dtype) {
  return sharding.grads_in_bf16 ? DType::kBF16 : kernels::stat_dtype(dtype);
}

StoreBytes store_bytes(const FlatLayout& layout, DType dtype) {
  const Sharding& sharding = layout.sharding;
  const auto value = static_cast<int64_t>(dtype_bytes(dtype));
  const auto stat = static_cast<int64_t>(dtype_bytes(kernels::stat_dtype(dtype)));
  const auto grad = static_cast<int64_t>(dtype_bytes(grad_dtype(sharding, dtype)));
  const int64_t num_values = layout.num_value_elements / (sharding.cuts_values() ? sharding.num_shards : 1);
  return {.values = sharding.values_elsewhere ? 0 : num_values * value,
          .gathered = sharding.cuts_values() ? layout.num_pair_elements * value : 0,
          .grads = layout.num_elements / (sharding.cuts_grads() ? sharding.num_shards : 1) * grad,
          .staged = sharding.stages_grads() ? layout.num_pair_elements * stat : 0,
          .sent = sharding.each_microbatch && sharding.grads_in_bf16 ? layout.num_pair_elements * grad : 0};
}

}  // namespace ashlar
