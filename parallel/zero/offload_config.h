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
  FileHomeOptions files{};
  int64_t chunk_elements = kChunkElements;  // a multiple of kernels::kNormBlock

  bool offloads_state() const { return state != HomeKind::kDevice; }
};

// Kinds of state, in the order in which they lie in a home.
struct StateKinds {
  bool masters = false;
  bool moments = false;

  int count() const { return (masters ? 1 : 0) + (moments ? 2 : 0); }
  int first_moment() const { return masters ? 1 : 0; }
};
// Pure. An update on the host beside a GPU needs masters there of any values; else those of 16-bit values have some.
StateKinds state_kinds(DType values, bool has_moments, DeviceKind device, HomeKind home);

// Pure. Of one rank: state in its home, and what carries gradients and values between it and a GPU.
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

// Blocks the host. Throws Error(kUsage), which names the flag, where a directory does not serve.
std::unique_ptr<StateHome> make_state_home(RankContext& rank, const HomeShape& shape, const OffloadConfig& config);

// Pure. The pieces with values, cut where chunks end.
std::vector<FlatPiece> cut_pieces(const std::vector<FlatPiece>& owned, const std::vector<StateChunk>& chunks);

}  // namespace ashlar
