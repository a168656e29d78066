// What of a rank's numbers lies elsewhere than in device memory, where, and what that takes.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "parallel/zero/state_home.h"
#include "runtime/comm/launch.h"

namespace ashlar {

// Where numbers lie that a rank touches once a step (--offload-optimizer-device, --nvme-path).
struct OffloadConfig {
  HomeKind state = HomeKind::kDevice;
  HomeKind values = HomeKind::kDevice;  // elsewhere only where `state` is: it then has masters
  FileHomeOptions state_files{};
  FileHomeOptions value_files{};
  int64_t chunk_elements = kChunkElements;  // a multiple of kernels::kNormBlock

  bool offloads_state() const { return state != HomeKind::kDevice; }
  bool offloads_values() const { return values != HomeKind::kDevice; }
};

// Kinds of state, in the order in which they lie in a home.
struct StateKinds {
  bool masters = false;
  bool moments = false;

  int count() const { return (masters ? 1 : 0) + (moments ? 2 : 0); }
  int first_moment() const { return masters ? 1 : 0; }
};
// Pure. An update on the host beside a GPU needs masters there of any values, and values that are elsewhere have some;
// else those of 16-bit values.
StateKinds state_kinds(DType values, bool has_moments, DeviceKind device, const OffloadConfig& config);

// Pure. Of one rank: state and values in their homes, and what carries gradients and values between it and a GPU.
HomeBytes offloaded_bytes(const FlatLayout& layout, DType values, bool has_moments, const OffloadConfig& config,
                          DeviceKind device);

// Pure. Of masters and moments, where `values` is the dtype of values.
HomeShape state_shape(const FlatLayout& layout, DType values, const StateKinds& kinds, int64_t chunk_elements);

// What carries the chunks of every other update between a GPU and the host, and the scalars of the update.
struct CarrierViews {
  TensorView scalars;                // [kNumUpdateScalars] fp64
  std::array<TensorView, 2> grads;   // [largest chunk]
  std::array<TensorView, 2> values;  // [largest chunk]
};
CarrierViews lay_out_carriers(Arena& arena, int64_t largest_chunk, DType grads, DType values);

// Pure. Of values, a layer's as one chunk.
HomeShape value_shape(const FlatLayout& layout, DType values);

// Blocks the host. `kind` is kHost or kFiles. Throws Error(kUsage), which names the flag, where a directory does not
// serve.
std::unique_ptr<StateHome> make_home(RankContext& rank, const HomeShape& shape, HomeKind kind,
                                     const FileHomeOptions& files, const std::string& what);

// Pure. The pieces with values, cut where chunks end.
std::vector<FlatPiece> cut_pieces(const std::vector<FlatPiece>& owned, const std::vector<StateChunk>& chunks);

}  // namespace ashlar
