#include "parallel/zero/parameter_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "kernels/stat_dtype.h"
#include "runtime/base/hash.h"
#include "runtime/base/rng.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {
namespace {

// Elements that one loop iteration draws; a multiple of what a random block holds.
constexpr int64_t kDrawBlock = 4096;

// The local tensor in host memory, padding zero.
template <typename T>
void draw(T* data, const Parameter& parameter, uint64_t seed) {
  const PhiloxStream random(seed, RngPurpose::kInit, stream_of(parameter.name));
  std::fill_n(data, parameter.value.num_elements(), T{0});
  parameter.shard.for_each_run([&](int64_t local, int64_t global, int64_t length) {
    const int64_t num_blocks = (length + kDrawBlock - 1) / kDrawBlock;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < num_blocks; ++block) {
      std::array<float, kDrawBlock> draws{};
      const int64_t begin = block * kDrawBlock;
      const int64_t count = std::min(kDrawBlock, length - begin);
      if (parameter.init_std != 0) {
        random.normals(static_cast<uint64_t>(global + begin), std::span(draws).first(static_cast<size_t>(count)));
      }
      for (int64_t at = 0; at < count; ++at) {
        data[local + begin + at] = static_cast<T>(static_cast<float>(
            parameter.init_mean + parameter.init_std * static_cast<double>(draws[static_cast<size_t>(at)])));
      }
    }
  });
}

// Rounds in place: the 16-bit numbers fill the first half of the memory.
void round_in_place(std::vector<float>& values, DType dtype) {
  auto* out = reinterpret_cast<std::byte*>(values.data());
  for (size_t at = 0; at < values.size(); ++at) {
    const uint16_t bits = dtype == DType::kBF16 ? to_bf16(values[at]).bits : to_f16(values[at]).bits;
    std::memcpy(out + at * sizeof(bits), &bits, sizeof(bits));
  }
}

void set_zero(Device& device, const Buffer& buffer) {
  const std::unique_ptr<Stream> stream = device.create_stream();
  stream->fill_zero(buffer.data(), buffer.bytes());
  stream->synchronize();
}

Parameter* first_use(const std::vector<ParameterStore::Entry>& entries, const Parameter& copy) {
  const auto found = std::ranges::find_if(entries, [&](const ParameterStore::Entry& entry) {
    return entry.parameter->name == copy.name && !entry.parameter->tied_copy;
  });
  return found == entries.end() ? nullptr : found->parameter;
}

// Elements [begin, begin + count) of an arena.
TensorView slice_of(const Buffer& arena, DType dtype, int64_t begin, int64_t count) {
  return {arena.data() + static_cast<size_t>(begin) * dtype_bytes(dtype), dtype, {count}};
}

}  // namespace

StageParameters stage_parameters(const StageChunk& chunk) {
  return {.stage = chunk.stage(), .layers = chunk.parameters_by_layer()};
}

std::vector<FlatTensor> flat_tensors(const std::vector<StageParameters>& stages) {
  std::vector<FlatTensor> tensors;
  std::vector<std::string> first_uses;
  for (const StageParameters& stage : stages) {
    for (size_t layer = 0; layer < stage.layers.size(); ++layer) {
      for (const Parameter* parameter : stage.layers[layer]) {
        if (parameter->tied_first) {
          first_uses.push_back(parameter->name);
        }
        tensors.push_back(
            {.num_elements = parameter->shard.local().num_elements(),
             .stage = stage.stage,
             .layer = layer,
             .is_tied = parameter->tied_first || parameter->tied_copy,
             .shares_value = parameter->tied_copy && std::ranges::count(first_uses, parameter->name) > 0});
      }
    }
  }
  return tensors;
}

ParameterStore::ParameterStore(Device& device, const ProcessGrid& grid, const std::vector<StageParameters>& stages,
                               DType dtype, const Sharding& sharding)
    : device_(device),
      dtype_(dtype),
      grad_dtype_(ashlar::grad_dtype(sharding, dtype)),
      shard_(grid.coordinate().data % sharding.num_shards),
      is_first_instance_(grid.coordinate().data < sharding.num_shards) {
  const std::vector<FlatTensor> tensors = flat_tensors(stages);
  layout_ = lay_out_flat(tensors, sharding);
  owned_ = owned_pieces(layout_, tensors, shard_);
  for (const StageParameters& stage : stages) {
    for (const auto& layer : stage.layers) {
      for (Parameter* parameter : layer) {
        entries_.push_back(
            {.parameter = parameter,
             .stage = stage.stage,
             .counted = !parameter->tied_copy && (parameter->shard.is_split() || grid.coordinate().tensor == 0),
             .shares_value = tensors[entries_.size()].shares_value});
      }
    }
  }
  allocate();
  bind();
}

void ParameterStore::allocate() {
  const StoreBytes bytes = store_bytes(layout_, dtype_);
  const auto take = [&](int64_t size, const char* what, MemoryItem item) {
    Buffer buffer = device_.allocate(static_cast<size_t>(size), what, item);
    set_zero(device_, buffer);
    return buffer;
  };
  values_ = take(bytes.values, "parameters", MemoryItem::kParameters);
  gathered_ = take(bytes.gathered, "parameters of two layers, gathered", MemoryItem::kGatheredParameters);
  grads_ = take(bytes.grads, "gradients", MemoryItem::kGradients);
  staged_ = take(bytes.staged, "gradients of two layers, as layers write them", MemoryItem::kGradientStaging);
  sent_ = take(bytes.sent, "gradients of two layers, on their way", MemoryItem::kGradientStaging);
}

void ParameterStore::bind() {
  const auto place = [](const Buffer& arena, DType dtype, int64_t at, const Shape& shape) {
    return TensorView{arena.data() + static_cast<size_t>(at) * dtype_bytes(dtype), dtype, shape};
  };
  for (const FlatLayer& layer : layout_.layers) {
    const int64_t in_pair = layout_.place_in_pair(layer) - layer.begin;
    for (size_t at = layer.first_tensor; at < layer.end_tensor; ++at) {
      Parameter& parameter = *entries_[at].parameter;
      const Shape shape = parameter.shard.local();
      const int64_t offset = layout_.offsets[at];
      parameter.grad = sharding().stages_grads() ? place(staged_, kernels::stat_dtype(dtype_), in_pair + offset, shape)
                                                 : place(grads_, grad_dtype_, offset, shape);
      if (sharding().cuts_values()) {
        parameter.value = place(gathered_, dtype_, in_pair + offset, shape);
      } else {
        parameter.value =
            entries_[at].shares_value ? first_use(entries_, parameter)->value : place(values_, dtype_, offset, shape);
      }
    }
  }
}

void ParameterStore::initialize(uint64_t seed, const TakeUnrounded& take_unrounded) {
  HostCopy copy(device_);
  std::vector<double> doubles;
  std::vector<float> floats;
  // Values of an entry, as they are to lie: all of them, or what this rank owns.
  const auto hand_out = [&](size_t entry, const void* values) {
    if (!sharding().cuts_values()) {
      const TensorView value = entries_[entry].parameter->value;
      copy.to_device(value.data, values, value.bytes());
      return;
    }
    for (const FlatPiece& piece : owned_) {
      if (piece.tensor == entry && !sharding().values_elsewhere) {
        const TensorView value = value_of(piece);
        copy.to_device(value.data,
                       static_cast<const std::byte*>(values) + static_cast<size_t>(piece.begin) * dtype_bytes(dtype_),
                       value.bytes());
      }
    }
  };
  for (size_t at = 0; at < entries_.size(); ++at) {
    const Parameter& parameter = *entries_[at].parameter;
    if (entries_[at].shares_value) {
      continue;
    }
    const auto count = static_cast<size_t>(parameter.value.num_elements());
    if (dtype_ == DType::kF64) {
      doubles.resize(count);
      draw(doubles.data(), parameter, seed);
      hand_out(at, doubles.data());
      continue;
    }
    floats.resize(count);
    draw(floats.data(), parameter, seed);
    if (take_unrounded) {
      take_unrounded(at, floats);
    }
    if (dtype_ != DType::kF32) {
      round_in_place(floats, dtype_);
    }
    hand_out(at, floats.data());
  }
}

TensorView ParameterStore::value_of(const FlatPiece& piece) const {
  if (sharding().values_elsewhere) {
    return {nullptr, dtype_, {piece.num_elements()}};
  }
  const int64_t at = sharding().cuts_values() ? piece.owned_begin : layout_.offsets[piece.tensor] + piece.begin;
  return slice_of(values_, dtype_, at, piece.num_elements());
}

TensorView ParameterStore::grad_of(const FlatPiece& piece) const {
  const int64_t at = sharding().cuts_grads() ? piece.owned_begin : layout_.offsets[piece.tensor] + piece.begin;
  return slice_of(grads_, grad_dtype_, at, piece.num_elements());
}

TensorView ParameterStore::values_of(const FlatBucket& bucket) const {
  DCHECK(!sharding().cuts_values(), "values are cut");
  return slice_of(values_, dtype_, bucket.value_begin, bucket.num_elements());
}

TensorView ParameterStore::grads_of(const FlatBucket& bucket) const {
  DCHECK(!sharding().cuts_grads(), "gradients are cut");
  return slice_of(grads_, grad_dtype_, bucket.begin, bucket.num_elements());
}

TensorView ParameterStore::own_values_of(const FlatBucket& bucket) const {
  const int64_t shards = sharding().num_shards;
  return sharding().cuts_values()
             ? slice_of(values_, dtype_, bucket.value_begin / shards, bucket.num_elements() / shards)
             : own_part(values_of(bucket));
}

TensorView ParameterStore::own_grads_of(const FlatBucket& bucket) const {
  const int64_t shards = sharding().num_shards;
  return sharding().cuts_grads() ? slice_of(grads_, grad_dtype_, bucket.begin / shards, bucket.num_elements() / shards)
                                 : own_part(grads_of(bucket));
}

TensorView ParameterStore::own_part(TensorView bucket) const {
  const int64_t share = bucket.num_elements() / sharding().num_shards;
  return bucket.slice(shard_ * share, (shard_ + 1) * share);
}

TensorView ParameterStore::gathered(const FlatLayer& layer, const FlatBucket& bucket) const {
  return slice_of(gathered_, dtype_, layout_.place_in_pair(layer) + bucket.begin - layer.begin, bucket.num_elements());
}

TensorView ParameterStore::staged(const FlatLayer& layer, const FlatBucket& bucket) const {
  return slice_of(staged_, kernels::stat_dtype(dtype_), layout_.place_in_pair(layer) + bucket.begin - layer.begin,
                  bucket.num_elements());
}

TensorView ParameterStore::sent(const FlatLayer& layer, const FlatBucket& bucket) const {
  return slice_of(sent_, grad_dtype_, layout_.place_in_pair(layer) + bucket.begin - layer.begin, bucket.num_elements());
}

std::vector<TensorView> ParameterStore::owned_grads_of_tied(size_t entry) const {
  std::vector<TensorView> parts;
  for (const FlatBucket& bucket : layout_.buckets) {
    if (bucket.first_tensor == entry) {
      parts.push_back(own_grads_of(bucket));
    }
  }
  return parts;
}

int64_t ParameterStore::num_local_elements() const {
  int64_t count = 0;
  for (const Entry& entry : entries_) {
    count += entry.shares_value ? 0 : entry.parameter->value.num_elements();
  }
  return count;
}

}  // namespace ashlar
