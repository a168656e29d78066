// The collectives of host memory, written once over rounds. Each element is summed by one owner in ascending rank
// order, so results do not depend on chunks, on the carrier or on who owns the element: all_reduce equals
// reduce_scatter followed by all_gather bit for bit.
#pragma once

#include <vector>

#include "runtime/comm/host/rounds.h"
#include "runtime/tensor/tensor.h"

namespace ashlar {

class Collectives {
 public:
  // `rounds` may be null for a group of one, whose operations are copies.
  Collectives(Rounds* rounds, int rank, int size);

  // All block the host; `op` is what the members must agree on.
  void all_reduce(const OpInfo& op, TensorView x);
  void all_gather(const OpInfo& op, std::byte* out, const std::byte* in, size_t bytes);  // bytes of `in`
  void reduce_scatter(const OpInfo& op, TensorView out, ConstTensorView in);
  void broadcast(const OpInfo& op, std::byte* data, size_t bytes);
  void barrier(const OpInfo& op);

 private:
  void all_reduce_small(const OpInfo& op, TensorView x);
  void reduce_part(const OpInfo& op, std::byte* dst, const std::byte* own, int64_t count);

  Rounds* rounds_;
  int rank_;
  int size_;
  std::vector<const std::byte*> sources_;  // by rank; kept, so that no operation allocates
};

}  // namespace ashlar
