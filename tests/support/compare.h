// How far two tensors are apart, and test data that depends on nothing but its name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace ashlar {

// Pure. ||a - b|| / ||b|| in fp64, 0 when both are zero, infinity when sizes differ or a number is not finite. fp32,
// fp64, bf16 and fp16.
double relative_l2_error(ConstTensorView a, ConstTensorView b);
// Pure. max |a - b|, with the same meaning of infinity.
double max_abs_error(ConstTensorView a, ConstTensorView b);
// Pure. Same type, number of elements and bits.
bool same_bits(ConstTensorView a, ConstTensorView b);
// Pure. The elements as doubles; integers too.
std::vector<double> to_doubles(ConstTensorView a);

// Pure. Normal numbers that depend on `name` and the element's index only.
std::vector<float> random_floats(std::string_view name, size_t count, float deviation = 1.0f);

}  // namespace ashlar
