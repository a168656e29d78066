// What gradients are on a GPU: fp32 or bf16.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

// Calls function(T{}) with the C++ type of a gradient's element. On the host.
template <typename Function>
void with_gradient_element(Element element, Function function) {
  if (element == Element::kBf16) {
    function(Bf16{});
  } else {
    function(float{});
  }
}

}  // namespace ashlar::kernels::cuda
