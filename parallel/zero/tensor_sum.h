// Gradients of which each tensor rank has the part that its own rows make (Parameter::sum_over_tensor): norms, biases
// behind a sum and positions under sequence parallelism. They are many and small, so they travel packed.
#pragma once

#include <vector>

#include "parallel/layers/parameter.h"
#include "runtime/comm/communicator.h"

namespace ashlar {

class TensorSum {
 public:
  // A tensor of at least so many elements (a position table) is summed where it lies.
  static constexpr int64_t kSummedInPlace = int64_t{1} << 18;

  // Blocks the host. `sets`: parameters whose gradients are complete together; those that are not marked are passed by.
  // Parameters' gradients must have a dtype, and an address by the time of sum() only.
  TensorSum(Device& device, Communicator& tensor, const std::vector<std::vector<Parameter*>>& sets);

  // Collective over the tensor axis; Stream-ordered. Each marked gradient of the set becomes the sum over the ranks,
  // the same bits on all of them. Nothing happens where none is marked.
  void sum(size_t set, Stream& stream);

  // Pure. Elements that the buffer has room for: those of the largest set that are packed.
  static int64_t most_packed(const std::vector<std::vector<Parameter*>>& sets);
  // Pure. Elements of a set that are packed, and that are summed at all.
  static int64_t num_packed(const std::vector<Parameter*>& set);
  static int64_t num_summed(const std::vector<Parameter*>& set);

 private:
  Communicator& tensor_;
  std::vector<std::vector<Parameter*>> sets_;  // marked ones only
  Buffer packed_;
};

}  // namespace ashlar
