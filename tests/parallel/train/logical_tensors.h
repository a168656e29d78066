// The tensors of a run as the model names them, whole, whatever grid holds them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel/train/training.h"
#include "runtime/base/hash.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar::test {

using LogicalTensors = std::map<std::string, std::vector<float>>;
enum class TensorKind { kValue, kGrad, kFirstMoment, kSecondMoment };

// In device memory; of a 16-bit weight its fp32 master.
inline TensorView tensor_of(const Training& training, const Optimizer::WholeState& state, size_t entry,
                            TensorKind kind) {
  const Parameter& parameter = *training.store.entries()[entry].parameter;
  switch (kind) {
    case TensorKind::kValue:
      return state.masters[entry];
    case TensorKind::kGrad:
      return parameter.grad;
    case TensorKind::kFirstMoment:
      return state.moments[entry].first;
    case TensorKind::kSecondMoment:
      return state.moments[entry].second;
  }
  return {};
}

// Collective. Each element comes from one rank, so nothing is rounded.
inline LogicalTensors gather_logical(Training& training, TensorKind kind) {
  LogicalTensors all;
  HostCopy copy(training.rank.device);
  std::vector<std::byte> scratch;
  const Optimizer::WholeState state = training.optimizer.whole_state(true);
  for (const GlobalParameter& tensor : global_parameters(training.config)) {
    std::vector<float>& values = all[tensor.name];
    values.assign(static_cast<size_t>(tensor.shape.num_elements()), 0.0f);
    const auto& entries = training.store.entries();
    for (size_t at = 0; at < entries.size(); ++at) {
      const Parameter& parameter = *entries[at].parameter;
      if (parameter.name == tensor.name && entries[at].counted && training.grid.coordinate().data == 0) {
        const TensorView held = tensor_of(training, state, at, kind);
        if (held.data == nullptr) {
          continue;  // SGD has no moments
        }
        const float* from = copy.on_host(held, scratch).as<float>();
        parameter.shard.for_each_run([&](int64_t local, int64_t global, int64_t length) {
          std::copy_n(from + local, length, values.data() + global);
        });
      }
    }
    training.rank.world
        .all_reduce(view_of(values.data(), {tensor.shape.num_elements()}), ReduceOp::kSum, *training.stream)
        .wait_host();
  }
  return all;
}

// Collective over the data axis. Every holder of a slice, tied copies included, takes the given values; padding becomes
// zero.
inline void set_values(Training& training, const LogicalTensors& values) {
  HostCopy copy(training.rank.device);
  std::vector<float> local;
  const Optimizer::WholeState state = training.optimizer.whole_state(false);
  const auto& entries = training.store.entries();
  for (size_t at = 0; at < entries.size(); ++at) {
    if (entries[at].shares_value) {
      continue;
    }
    const Parameter& parameter = *entries[at].parameter;
    local.assign(static_cast<size_t>(parameter.value.num_elements()), 0.0f);
    parameter.shard.for_each_run([&](int64_t begin, int64_t global, int64_t length) {
      std::copy_n(values.at(parameter.name).data() + global, length, local.data() + begin);
    });
    copy.to_device(state.masters[at].data, local.data(), local.size() * sizeof(float));
  }
  training.optimizer.take_whole_state(state);
}

inline uint64_t hash_of(const LogicalTensors& tensors) {
  uint64_t hash = 0;
  for (const auto& [name, values] : tensors) {
    hash = hash_bytes(values.data(), values.size() * sizeof(float), hash ^ hash_bytes(name.data(), name.size()));
  }
  return hash;
}

}  // namespace ashlar::test
