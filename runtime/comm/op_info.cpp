#include "runtime/comm/op_info.h"

#include <fmt/format.h>

namespace ashlar {

std::string_view op_kind_name(OpKind kind) {
  switch (kind) {
    case OpKind::kNone:
      return "none";
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kExchange:
      return "exchange";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kSplit:
      return "split";
  }
  return "unknown";
}

std::string OpInfo::text() const {
  std::string what(op_kind_name(kind));
  if (kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter) {
    what += reduce_op == ReduceOp::kSum ? "(sum)" : "(max)";
  } else if (kind == OpKind::kBroadcast) {
    what += fmt::format("(root {})", root);
  }
  if (kind == OpKind::kBarrier || kind == OpKind::kSplit) {
    return fmt::format("{} #{}", what, number);
  }
  return fmt::format("{} #{} of {} bytes {}", what, number, bytes, dtype_name(dtype));
}

}  // namespace ashlar
