#include "parallel/zero/tensor_sum.h"

#include <algorithm>
#include <iterator>

namespace ashlar {
namespace {

bool is_packed(const Parameter& parameter) {
  return parameter.sum_over_tensor && parameter.shard.local().num_elements() < TensorSum::kSummedInPlace;
}

}  // namespace

TensorSum::TensorSum(Device& device, Communicator& tensor, const std::vector<std::vector<Parameter*>>& sets)
    : tensor_(tensor) {
  size_t element = 0;
  for (const std::vector<Parameter*>& set : sets) {
    auto& marked = sets_.emplace_back();
    std::ranges::copy_if(set, std::back_inserter(marked), &Parameter::sum_over_tensor);
    element = marked.empty() ? element : dtype_bytes(marked.front()->grad.dtype);
  }
  packed_ = device.allocate(static_cast<size_t>(most_packed(sets)) * element,
                            "gradients on their way over the tensor axis", MemoryItem::kGradientStaging);
}

void TensorSum::sum(size_t set, Stream& stream) {
  const std::vector<Parameter*>& marked = sets_[set];
  if (marked.empty()) {
    return;
  }
  const auto for_each_packed = [&](const auto& visit) {  // visit(place in the buffer, gradient)
    std::byte* at = packed_.data();
    for (const Parameter* parameter : marked) {
      if (is_packed(*parameter)) {
        visit(at, parameter->grad);
        at += parameter->grad.bytes();
      }
    }
  };
  for_each_packed([&](std::byte* at, TensorView grad) { stream.copy(at, grad.data, grad.bytes()); });
  if (const int64_t count = num_packed(marked); count > 0) {
    const TensorView packed{packed_.data(), marked.front()->grad.dtype, {count}};
    tensor_.all_reduce(packed, ReduceOp::kSum, stream).wait(stream);
  }
  for_each_packed([&](std::byte* at, TensorView grad) { stream.copy(grad.data, at, grad.bytes()); });
  for (const Parameter* parameter : marked) {
    if (!is_packed(*parameter)) {
      tensor_.all_reduce(parameter->grad, ReduceOp::kSum, stream).wait(stream);
    }
  }
}

int64_t TensorSum::most_packed(const std::vector<std::vector<Parameter*>>& sets) {
  int64_t most = 0;
  for (const std::vector<Parameter*>& set : sets) {
    most = std::max(most, num_packed(set));
  }
  return most;
}

int64_t TensorSum::num_packed(const std::vector<Parameter*>& set) {
  int64_t count = 0;
  for (const Parameter* parameter : set) {
    count += is_packed(*parameter) ? parameter->shard.local().num_elements() : 0;
  }
  return count;
}

int64_t TensorSum::num_summed(const std::vector<Parameter*>& set) {
  int64_t count = 0;
  for (const Parameter* parameter : set) {
    count += parameter->sum_over_tensor ? parameter->shard.local().num_elements() : 0;
  }
  return count;
}

}  // namespace ashlar
