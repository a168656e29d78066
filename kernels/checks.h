// The argument check that every kernel makes once, before it dispatches.
#pragma once

#include <string_view>

#include "runtime/base/error.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Pure. Throws when the view does not hold `num_elements` of `dtype`, or has no memory. Leading dims may be laid out
// in any way ([R,C] or [B,T,C]), so elements are counted and shapes are not compared.
inline void check_view(std::string_view op, std::string_view name, const ConstTensorView& view, DType dtype,
                       int64_t num_elements) {
  DCHECK(view.dtype == dtype && view.num_elements() == num_elements, "{}: {} is {} {}, expected {} elements of {}", op,
         name, dtype_name(view.dtype), view.shape.text(), num_elements, dtype_name(dtype));
  DCHECK(view.data != nullptr || num_elements == 0, "{}: {} has no memory", op, name);
}

}  // namespace ashlar::kernels
