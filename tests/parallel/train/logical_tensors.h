// The tensors of a run as the model names them, whole, whatever grid holds them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel/train/training.h"
#include "runtime/base/hash.h"
#include "runtime/checkpoint/pieces.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar::test {

using LogicalTensors = std::map<std::string, std::vector<float>>;
enum class TensorKind { kValue, kGrad, kFirstMoment, kSecondMoment };

// [n] in device memory, or of its allocate_host(); of a 16-bit weight its fp32 master.
inline TensorView tensor_of(const Optimizer& optimizer, size_t piece, TensorKind kind) {
  using State = Optimizer::StateKind;
  if (kind == TensorKind::kGrad) {
    return optimizer.pieces()[piece].grad;
  }
  const State state = kind == TensorKind::kValue         ? State::kMaster
                      : kind == TensorKind::kFirstMoment ? State::kFirstMoment
                                                         : State::kSecondMoment;
  TensorView held = optimizer.state_of(piece, state);
  if (held.data == nullptr && held.num_elements() > 0 && optimizer.offloaded() != nullptr) {
    held.data = optimizer.bring_state(piece, state, false);
  }
  return held;
}

// Collective. Each element comes from one rank, so nothing is rounded.
inline LogicalTensors gather_logical(Training& training, TensorKind kind) {
  LogicalTensors all;
  HostCopy copy(training.rank.device);
  std::vector<std::byte> scratch;
  training.stream->synchronize();
  for (const GlobalParameter& tensor : global_parameters(training.config)) {
    std::vector<float>& values = all[tensor.name];
    values.assign(static_cast<size_t>(tensor.shape.num_elements()), 0.0f);
    for (size_t at = 0; at < training.optimizer.pieces().size(); ++at) {
      const Optimizer::Piece& piece = training.optimizer.pieces()[at];
      const Parameter& parameter = *training.store.entries()[piece.entry].parameter;
      const TensorView held = tensor_of(training.optimizer, at, kind);
      if (parameter.name != tensor.name || !training.store.saves(piece.entry) || held.data == nullptr) {
        continue;  // SGD has no moments
      }
      const float* from = copy.on_host(held, scratch).as<float>();
      for_each_run(piece_of(parameter.shard, piece.begin, held.num_elements()),
                   [&](int64_t position, int64_t global, int64_t length) {
                     std::copy_n(from + position, length, values.data() + global);
                   });
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
  training.stream->synchronize();
  for (size_t at = 0; at < training.optimizer.pieces().size(); ++at) {
    const Optimizer::Piece& piece = training.optimizer.pieces()[at];
    const Parameter& parameter = *training.store.entries()[piece.entry].parameter;
    const TensorView master = training.optimizer.state_of(at, Optimizer::StateKind::kMaster);
    local.assign(static_cast<size_t>(master.num_elements()), 0.0f);
    for_each_run(piece_of(parameter.shard, piece.begin, master.num_elements()),
                 [&](int64_t position, int64_t global, int64_t length) {
                   std::copy_n(values.at(parameter.name).data() + global, length, local.data() + position);
                 });
    copy.to_device(master.data, local.data(), master.bytes());
  }
  training.optimizer.round_masters();
  training.sync.values().updated();
  training.stream->synchronize();
}

inline uint64_t hash_of(const LogicalTensors& tensors) {
  uint64_t hash = 0;
  for (const auto& [name, values] : tensors) {
    hash = hash_bytes(values.data(), values.size() * sizeof(float), hash ^ hash_bytes(name.data(), name.size()));
  }
  return hash;
}

}  // namespace ashlar::test
