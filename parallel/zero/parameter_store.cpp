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

size_t local_bytes(const Parameter& parameter, DType dtype) {
  return static_cast<size_t>(parameter.shard.local().num_elements()) * dtype_bytes(dtype);
}

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

Parameter* first_use(const std::vector<std::vector<Parameter*>>& parameters, const Parameter& copy) {
  for (const auto& of_stage : parameters) {
    for (Parameter* other : of_stage) {
      if (other->name == copy.name && !other->tied_copy) {
        return other;
      }
    }
  }
  return nullptr;
}

}  // namespace

std::vector<FlatTensor> flat_tensors(const std::vector<int>& stages,
                                     const std::vector<std::vector<Parameter*>>& parameters) {
  std::vector<FlatTensor> tensors;
  for (size_t at = 0; at < stages.size(); ++at) {
    for (const Parameter* parameter : parameters[at]) {
      tensors.push_back({.num_elements = parameter->shard.local().num_elements(),
                         .stage = stages[at],
                         .is_tied = parameter->tied_first || parameter->tied_copy,
                         .shares_value = parameter->tied_copy && first_use(parameters, *parameter) != nullptr});
    }
  }
  return tensors;
}

ParameterStore::ParameterStore(Device& device, const ProcessGrid& grid, const std::vector<int>& stages,
                               const std::vector<std::vector<Parameter*>>& parameters, DType dtype,
                               const Sharding& sharding)
    : device_(device),
      dtype_(dtype),
      shard_(sharding.is_sharded() ? grid.coordinate().data : 0),
      is_first_replica_(sharding.is_sharded() || grid.coordinate().data == 0) {
  const DType grad_dtype = kernels::stat_dtype(dtype);
  const std::vector<FlatTensor> tensors = flat_tensors(stages, parameters);
  if (sharding.is_sharded()) {
    layout_ = lay_out_shards(tensors, sharding);
    owned_ = owned_pieces(layout_, tensors, shard_);
  } else {
    for (size_t at = 0; at < tensors.size(); ++at) {
      owned_.push_back({at, 0, tensors[at].num_elements, 0});
    }
  }

  Arena values, grads;  // counting
  std::vector<size_t> value_offsets;
  for (size_t at = 0; at < stages.size(); ++at) {
    const size_t begin = grads.used();
    for (Parameter* parameter : parameters[at]) {
      const size_t index = entries_.size();
      Entry entry;
      entry.parameter = parameter;
      entry.stage = stages[at];
      entry.shares_value = tensors[index].shares_value;
      entry.counted = !parameter->tied_copy && (parameter->shard.is_split() || grid.coordinate().tensor == 0);
      if (sharding.is_sharded()) {
        entry.grad_offset = static_cast<size_t>(layout_.offsets[index]) * dtype_bytes(grad_dtype);
        value_offsets.push_back(static_cast<size_t>(layout_.offsets[index]) * dtype_bytes(dtype));
      } else {
        entry.grad_offset = grads.used();
        grads.take(local_bytes(*parameter, grad_dtype));
        value_offsets.push_back(values.used());
        values.take(entry.shares_value ? 0 : local_bytes(*parameter, dtype));
      }
      entries_.push_back(entry);
    }
    stage_ranges_.push_back({stages[at], begin, grads.used()});
  }
  if (sharding.is_sharded()) {
    grads.take(static_cast<size_t>(layout_.num_elements) * dtype_bytes(grad_dtype));
    values.take(static_cast<size_t>(layout_.num_value_elements) * dtype_bytes(dtype));
  }

  values_ = device.allocate(values.used(), "parameters");
  grads_ = device.allocate(grads.used(), "gradients");
  set_zero(device, values_);
  set_zero(device, grads_);
  for (size_t at = 0; at < entries_.size(); ++at) {
    Parameter& parameter = *entries_[at].parameter;
    const Shape shape = parameter.shard.local();
    parameter.grad = {grads_.data() + entries_[at].grad_offset, grad_dtype, shape};
    if (!entries_[at].shares_value) {
      parameter.value = {values_.data() + value_offsets[at], dtype, shape};
    }
  }
  for (const Entry& entry : entries_) {
    if (entry.shares_value) {
      entry.parameter->value = first_use(parameters, *entry.parameter)->value;
    }
  }
}

void ParameterStore::initialize(uint64_t seed, const TakeUnrounded& take_unrounded) {
  HostCopy copy(device_);
  std::vector<double> doubles;
  std::vector<float> floats;
  for (size_t at = 0; at < entries_.size(); ++at) {
    const Parameter& parameter = *entries_[at].parameter;
    if (entries_[at].shares_value) {
      continue;
    }
    const auto count = static_cast<size_t>(parameter.value.num_elements());
    if (dtype_ == DType::kF64) {
      doubles.resize(count);
      draw(doubles.data(), parameter, seed);
      copy.to_device(parameter.value.data, doubles.data(), parameter.value.bytes());
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
    copy.to_device(parameter.value.data, floats.data(), parameter.value.bytes());
  }
}

TensorView ParameterStore::grads(size_t begin_byte, size_t end_byte) const {
  const DType grad_dtype = kernels::stat_dtype(dtype_);
  const auto count = static_cast<int64_t>((end_byte - begin_byte) / dtype_bytes(grad_dtype));
  return {grads_.data() + begin_byte, grad_dtype, {count}};
}

TensorView ParameterStore::bucket_grads(const FlatBucket& bucket) const {
  const DType grad_dtype = kernels::stat_dtype(dtype_);
  return {grads_.data() + static_cast<size_t>(bucket.begin) * dtype_bytes(grad_dtype),
          grad_dtype,
          {bucket.end - bucket.begin}};
}

TensorView ParameterStore::bucket_values(const FlatBucket& bucket) const {
  return {
      values_.data() + static_cast<size_t>(bucket.begin) * dtype_bytes(dtype_), dtype_, {bucket.end - bucket.begin}};
}

TensorView ParameterStore::own_part(TensorView bucket) const {
  const int64_t share = bucket.num_elements() / layout_.sharding.num_shards;
  return bucket.slice(shard_ * share, (shard_ + 1) * share);
}

std::vector<TensorView> ParameterStore::owned_grads_of_tied(size_t entry) const {
  const TensorView grad = entries_[entry].parameter->grad;
  if (!is_sharded()) {
    return {grad.reshaped({grad.num_elements()})};
  }
  std::vector<TensorView> parts;
  for (const FlatBucket& bucket : layout_.buckets) {
    if (bucket.first_tensor == entry) {
      parts.push_back(own_part(bucket_grads(bucket)));
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

uint64_t ParameterStore::hash_values() const {
  std::vector<std::byte> scratch;
  const ConstTensorView all{values_.data(), DType::kU8, {static_cast<int64_t>(values_.bytes())}};
  return hash_bytes(HostCopy(device_).on_host(all, scratch).data, values_.bytes());
}

}  // namespace ashlar
