#include "parallel/zero/parameter_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "runtime/base/hash.h"
#include "runtime/base/rng.h"

namespace ashlar {
namespace {

size_t local_bytes(const Parameter& parameter, DType dtype) {
  return static_cast<size_t>(parameter.shard.local().num_elements()) * dtype_bytes(dtype);
}

// Elements that one loop iteration draws; a multiple of what a random block holds.
constexpr int64_t kDrawBlock = 4096;

template <typename T>
void fill_normal(const Parameter& parameter, uint64_t seed) {
  const PhiloxStream random(seed, RngPurpose::kInit, stream_of(parameter.name));
  T* data = parameter.value.as<T>();
  std::fill_n(data, parameter.value.num_elements(), T{0});  // padding rows stay zero
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

}  // namespace

ParameterStore::ParameterStore(Device& device, const ProcessGrid& grid, const std::vector<int>& stages,
                               const std::vector<std::vector<Parameter*>>& parameters, DType dtype)
    : dtype_(dtype) {
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
      grads.take(local_bytes(*parameter, dtype));
      if (!entry.shares_value) {
        values.take(local_bytes(*parameter, dtype));
      }
      entries_.push_back(entry);
    }
    stage_ranges_.push_back({stages[at], begin, grads.used()});
  }

  values_ = device.allocate(values.used(), "parameters");
  grads_ = device.allocate(grads.used(), "gradients");
  std::memset(values_.data(), 0, values_.bytes());
  std::memset(grads_.data(), 0, grads_.bytes());
  Arena placed(values_.data(), values_.bytes());
  for (const Entry& entry : entries_) {
    const Shape shape = entry.parameter->shard.local();
    entry.parameter->grad = {grads_.data() + entry.grad_offset, dtype, shape};
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

void ParameterStore::initialize(uint64_t seed) {
  for (const Entry& entry : entries_) {
    if (entry.shares_value) {
      continue;
    }
    if (dtype_ == DType::kF64) {
      fill_normal<double>(*entry.parameter, seed);
    } else {
      fill_normal<float>(*entry.parameter, seed);
    }
  }
}

TensorView ParameterStore::grads(size_t begin_byte, size_t end_byte) const {
  const auto count = static_cast<int64_t>((end_byte - begin_byte) / dtype_bytes(dtype_));
  return {grads_.data() + begin_byte, dtype_, {count}};
}

int64_t ParameterStore::num_local_elements() const {
  int64_t count = 0;
  for (const Entry& entry : entries_) {
    count += entry.shares_value ? 0 : entry.parameter->value.num_elements();
  }
  return count;
}

uint64_t ParameterStore::hash_values() const {
  return hash_bytes(values_.data(), values_.bytes());
}

}  // namespace ashlar
