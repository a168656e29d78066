// The gradient norm as a test sees it, without a step.
#pragma once

#include <cmath>
#include <vector>

#include "parallel/zero/optimizer.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {

// Collective as Optimizer::sum_squares(); blocks the host. L2 norm of grad_scale * gradients.
inline double grad_norm(Optimizer& optimizer, Stream& stream, double grad_scale) {
  optimizer.sum_squares();
  stream.synchronize();
  const ConstTensorView squares = optimizer.squares();
  std::vector<double> sums(static_cast<size_t>(squares.num_elements()));
  HostCopy(stream.device()).to_host(sums.data(), squares.data, squares.bytes());
  double total = 0;
  for (const double sum : sums) {
    total += sum;
  }
  return grad_scale * std::sqrt(total);
}

}  // namespace ashlar
