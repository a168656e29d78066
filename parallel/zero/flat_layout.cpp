#include "parallel/zero/flat_layout.h"

#include <algorithm>

#include "kernels/plain_types.h"
#include "runtime/base/error.h"

namespace ashlar {
namespace {

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

FlatLayout lay_out_shards(std::span<const FlatTensor> tensors, const Sharding& sharding) {
  FlatLayout layout;
  layout.sharding = sharding;
  const int64_t unit = int64_t{sharding.num_shards} * kernels::kNormBlock;
  const int64_t most = round_up(std::max<int64_t>(sharding.bucket_elements, 1), unit);
  int64_t at = 0;
  for (size_t first = 0; first < tensors.size();) {
    // Tensors that follow each other on a stage share buckets; a tied table stands alone.
    const int64_t begin = at;
    size_t last = first;
    do {
      layout.offsets.push_back(at);
      at += round_up(tensors[last].num_elements, kernels::kNormBlock);
      ++last;
    } while (last < tensors.size() && !tensors[first].is_tied && !tensors[last].is_tied &&
             tensors[last].stage == tensors[first].stage);
    at = begin + round_up(at - begin, unit);
    const bool has_value = !tensors[first].shares_value;
    DCHECK(has_value || last == tensors.size(), "tensor {} of {} shares a value", first, tensors.size());
    for (int64_t bucket = begin; bucket < at; bucket += most) {
      layout.buckets.push_back({tensors[first].stage, bucket, std::min(bucket + most, at), first, has_value});
    }
    layout.num_value_elements = has_value ? at : layout.num_value_elements;
    first = last;
  }
  layout.num_elements = at;
  return layout;
}

std::vector<FlatPiece> owned_pieces(const FlatLayout& layout, std::span<const FlatTensor> tensors, int shard) {
  std::vector<FlatPiece> pieces;
  size_t tensor = 0;
  int64_t owned = 0;
  for (const FlatBucket& bucket : layout.buckets) {
    const int64_t share = (bucket.end - bucket.begin) / layout.sharding.num_shards;
    const int64_t begin = bucket.begin + shard * share;
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
    owned += share;
  }
  return pieces;
}

}  // namespace ashlar
