// Bytes that a rank sends in one training step, by the group it sends them in.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "parallel/plan/run_shape.h"

namespace ashlar {

enum class TrafficGroup {
  kTensor,     // activations and their gradients between the parts of a layer; statistics of the loss
  kPipeline,   // activations and their gradients between stages
  kData,       // gradients of the parameters; values that are shared out
  kEmbedding,  // gradients of a tied table between first and last stage
  kModel,      // the squared norm
  kWorld,      // loss, counted targets, signals
};
constexpr size_t kNumTrafficGroups = 6;
const char* traffic_group_name(TrafficGroup group);

struct GroupTraffic {
  int num_ranks = 1;
  // What the rank hands to the communicator, as Communicator::bytes_sent() counts it, also in a group of one: the whole
  // tensor of an all-reduce, its own part of an all-gather, the tensor of a send.
  int64_t payload_bytes = 0;
  // What leaves the rank in a group of n when collectives go round a ring: 2 (n - 1) / n of an all-reduce's payload,
  // n - 1 times an all-gather's, a send's once. Rounded down.
  int64_t wire_bytes = 0;
};

using RankTraffic = std::array<GroupTraffic, kNumTrafficGroups>;  // by TrafficGroup

// Pure. By pipeline stage: the ranks of a stage send alike. Validation is not in it.
std::vector<RankTraffic> plan_traffic(const RunShape& shape);

}  // namespace ashlar
