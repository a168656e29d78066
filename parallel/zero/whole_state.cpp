// The optimizer's state as tensors, whole, whoever owns it: for checkpoints, start values and comparisons.
#include "kernels/cast.h"
#include "kernels/stat_dtype.h"
#include "parallel/zero/optimizer.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {
namespace {

TensorView flat(TensorView x) {
  return x.reshaped({x.num_elements()});
}

}  // namespace

// Where no rank holds a whole value, the master of an fp32 value is gathered too.
bool Optimizer::has_whole_masters() const {
  return has_masters() || store_.sharding().cuts_values();
}

// Masters where values are rounded, then both moments: what lies in arenas of its own when it is gathered.
std::vector<TensorView> Optimizer::parts_of(const Piece& piece, bool with_moments) const {
  std::vector<TensorView> parts;
  if (has_whole_masters()) {
    parts.push_back(piece.master);
  }
  if (with_moments && has_moments()) {
    parts.push_back(piece.moments.first);
    parts.push_back(piece.moments.second);
  }
  return parts;
}

std::vector<TensorView> Optimizer::parts_of(const WholeState& whole, const Piece& piece, bool with_moments) const {
  std::vector<TensorView> parts;
  if (has_whole_masters()) {
    parts.push_back(whole.masters[piece.entry]);
  }
  if (with_moments && has_moments()) {
    parts.push_back(whole.moments[piece.entry].first);
    parts.push_back(whole.moments[piece.entry].second);
  }
  for (TensorView& part : parts) {
    part = flat(part).slice(piece.begin, piece.begin + piece.grad.num_elements());
  }
  return parts;
}

Optimizer::WholeState Optimizer::lay_out_whole(bool with_moments, std::byte* memory) const {
  const auto& entries = store_.entries();
  WholeState whole;
  whole.masters.resize(entries.size());
  whole.moments.resize(entries.size());
  for (size_t at = 0; at < entries.size(); ++at) {
    if (entries[at].shares_value) {
      continue;
    }
    const Parameter& parameter = *entries[at].parameter;
    size_t kind = 0;
    const auto next = [&] {
      TensorView part{nullptr, kernels::stat_dtype(store_.dtype()), parameter.value.shape};
      if (memory != nullptr) {
        const int64_t first =
            static_cast<int64_t>(kind++) * store_.layout().num_value_elements + store_.layout().offsets[at];
        part.data = memory + static_cast<size_t>(first) * dtype_bytes(part.dtype);
      }
      return part;
    };
    whole.masters[at] = has_whole_masters() ? next() : parameter.value;
    if (with_moments && has_moments()) {
      whole.moments[at].first = next();
      whole.moments[at].second = next();
    }
  }
  return whole;
}

Optimizer::WholeState Optimizer::state_shapes(bool with_moments) const {
  return lay_out_whole(with_moments, nullptr);
}

Optimizer::WholeState Optimizer::whole_state(bool with_moments) {
  if (!store_.sharding().cuts_state()) {
    WholeState whole = lay_out_whole(with_moments, nullptr);
    for (const Piece& piece : pieces_) {
      const Shape shape = store_.entries()[piece.entry].parameter->value.shape;
      whole.masters[piece.entry] = piece.master.reshaped(shape);
      if (with_moments && has_moments()) {
        whole.moments[piece.entry] = {piece.moments.first.reshaped(shape), piece.moments.second.reshaped(shape)};
      }
    }
    stream_.synchronize();
    return whole;
  }
  const FlatLayout& layout = store_.layout();
  const DType stat = kernels::stat_dtype(store_.dtype());
  const size_t kinds = parts_of(pieces_.empty() ? Piece{} : pieces_.front(), with_moments).size();
  const auto kind_bytes = static_cast<size_t>(layout.num_value_elements) * dtype_bytes(stat);
  Buffer memory = stream_.device().allocate(kinds * kind_bytes, "optimizer state, gathered");
  stream_.fill_zero(memory.data(), memory.bytes());
  WholeState whole = lay_out_whole(with_moments, memory.data());
  for (const Piece& piece : pieces_) {
    const std::vector<TensorView> from = parts_of(piece, with_moments);
    const std::vector<TensorView> to = parts_of(whole, piece, with_moments);
    for (size_t kind = 0; kind < from.size(); ++kind) {
      stream_.copy(to[kind].data, from[kind].data, from[kind].bytes());
    }
  }
  for (size_t kind = 0; kind < kinds; ++kind) {
    const TensorView all{memory.data() + kind * kind_bytes, stat, {layout.num_value_elements}};
    for (const FlatBucket& bucket : layout.buckets) {
      if (bucket.has_value) {
        const TensorView part = all.slice(bucket.begin, bucket.end);
        grid_.shard().all_gather(part, store_.own_part(part), stream_).wait(stream_);
      }
    }
  }
  stream_.synchronize();
  whole.memory = std::move(memory);
  return whole;
}

void Optimizer::take_whole_state(const WholeState& whole) {
  const auto& entries = store_.entries();
  const bool with_moments = has_moments() && !whole.moments.empty() && whole.moments.front().first.data != nullptr;
  for (const Piece& piece : pieces_) {
    const std::vector<TensorView> from = parts_of(whole, piece, with_moments);
    const std::vector<TensorView> to = parts_of(piece, with_moments);
    for (size_t kind = 0; kind < from.size() && store_.sharding().cuts_state(); ++kind) {
      stream_.copy(to[kind].data, from[kind].data, from[kind].bytes());
    }
  }
  if (store_.sharding().cuts_values() && has_masters()) {
    for (const Piece& piece : pieces_) {
      kernels::cast(piece.value, piece.master, stream_);
    }
    stream_.synchronize();
    return;
  }
  for (size_t at = 0; at < entries.size() && has_masters(); ++at) {
    if (!entries[at].shares_value) {
      kernels::cast(flat(entries[at].parameter->value), flat(whole.masters[at]), stream_);
    }
  }
  stream_.synchronize();
}

void Optimizer::take_masters(size_t entry, const std::vector<float>& values) {
  HostCopy copy(stream_.device());
  for (const Piece& piece : pieces_) {
    if (piece.entry == entry && has_masters()) {
      copy.to_device(piece.master.data, values.data() + piece.begin, piece.master.bytes());
    }
  }
}

}  // namespace ashlar
