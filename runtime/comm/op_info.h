// What an operation of a communicator is: the part that all members must agree on, and that reports name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/dtype.h"

namespace ashlar {

enum class ReduceOp : int32_t { kSum, kMax };

enum class OpKind : int32_t { kNone, kAllReduce, kAllGather, kReduceScatter, kBroadcast, kExchange, kBarrier, kSplit };
inline constexpr int kNumOpKinds = 8;

std::string_view op_kind_name(OpKind kind);  // "all_reduce", ...

// Collectives of a communicator are numbered 1, 2, ... alike on all members; exchanges have a count of their own on
// each rank, because only the named peers take part in them.
struct OpInfo {
  uint64_t number = 0;
  uint64_t bytes = 0;  // payload of this rank: the whole tensor for all_reduce and reduce_scatter, `in` for all_gather
  OpKind kind = OpKind::kNone;
  DType dtype = DType::kU8;
  ReduceOp reduce_op = ReduceOp::kSum;
  int32_t root = 0;

  bool operator==(const OpInfo&) const = default;
  std::string text() const;  // "all_reduce(sum) #12 of 4096 bytes fp32"
};

// Pure. A number for a new group, alike on all its members, from its parent's and what sets it apart there.
uint64_t child_group_id(uint64_t parent, uint64_t op_number, int color);

}  // namespace ashlar
