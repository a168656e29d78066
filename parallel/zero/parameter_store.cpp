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

}  // namespace

ParameterStore::ParameterStore(Device& device, const ProcessGrid& grid, const std::vector<int>& stages,
                               const std::vector<std::vector<Parameter*>>& parameters, DType dtype)
    : device_(device), dtype_(dtype) {
  const DType grad_dtype = kernels::stat_dtype(dtype);
  const auto first_use = [&](const Parameter& copy) -> Parameter* {
    for (const auto& of_stage : parameters) {
      for (Parameter* other : of_stage) {
        if (other->name == copy.name && !other->tied_copy) {
          return other;
        }
      }
    }
    return nullptr;
  };

  Arena values, grads;  // counting
  for (size_t at = 0; at < stages.size(); ++at) {
    const size_t begin = grads.used();
    for (Parameter* parameter : parameters[at]) {
      Entry entry;
      entry.parameter = parameter;
      entry.stage = stages[at];
      entry.shares_value = parameter->tied_copy && first_use(*parameter) != nullptr;
      entry.counted = !parameter->tied_copy && (parameter->shard.is_split() || grid.coordinate().tensor == 0);
      entry.grad_offset = grads.used();
      grads.take(local_bytes(*parameter, grad_dtype));
      if (!entry.shares_value) {
        values.take(local_bytes(*parameter, dtype));
      }
      entries_.push_back(entry);
    }
    stage_ranges_.push_back({stages[at], begin, grads.used()});
  }

  values_ = device.allocate(values.used(), "parameters");
  grads_ = device.allocate(grads.used(), "gradients");
  set_zero(device, values_);
  set_zero(device, grads_);
  Arena placed(values_.data(), values_.bytes());
  for (const Entry& entry : entries_) {
    const Shape shape = entry.parameter->shard.local();
    entry.parameter->grad = {grads_.data() + entry.grad_offset, grad_dtype, shape};
    if (!entry.shares_value) {
      entry.parameter->value = take_tensor(placed, dtype, shape);
    }
  }
  for (const Entry& entry : entries_) {
    if (entry.shares_value) {
      entry.parameter->value = first_use(*entry.parameter)->value;
    }
  }
}

void ParameterStore::initialize(uint64_t seed, std::span<const TensorView> masters) {
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
    if (at < masters.size() && masters[at].data != nullptr) {
      copy.to_device(masters[at].data, floats.data(), masters[at].bytes());
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
