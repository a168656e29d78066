#include "tests/support/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/base/rng.h"

namespace ashlar {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename T>
double as_double(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<double>(value);
  } else {
    return to_float(value);
  }
}

template <typename T>
std::vector<double> convert(ConstTensorView a) {
  std::vector<double> values;
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    values.push_back(as_double(a.as<T>()[i]));
  }
  return values;
}

}  // namespace

std::vector<double> to_doubles(ConstTensorView a) {
  switch (a.dtype) {
    case DType::kF32:
      return convert<float>(a);
    case DType::kBF16:
      return convert<BFloat16>(a);
    case DType::kF16:
      return convert<Float16>(a);
    case DType::kF64:
      return convert<double>(a);
    case DType::kI32:
      return convert<int32_t>(a);
    case DType::kI64:
      return convert<int64_t>(a);
    case DType::kU8:
      return convert<uint8_t>(a);
  }
  return {};
}

double relative_l2_error(ConstTensorView a, ConstTensorView b) {
  const std::vector<double> left = to_doubles(a);
  const std::vector<double> right = to_doubles(b);
  if (left.size() != right.size()) {
    return kInfinity;
  }
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    difference += (left[i] - right[i]) * (left[i] - right[i]);
    norm += right[i] * right[i];
  }
  if (!std::isfinite(difference) || !std::isfinite(norm)) {
    return kInfinity;
  }
  if (difference == 0) {
    return 0;
  }
  return norm == 0 ? kInfinity : std::sqrt(difference / norm);
}

double max_abs_error(ConstTensorView a, ConstTensorView b) {
  const std::vector<double> left = to_doubles(a);
  const std::vector<double> right = to_doubles(b);
  if (left.size() != right.size()) {
    return kInfinity;
  }
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const double difference = std::abs(left[i] - right[i]);
    if (!std::isfinite(difference)) {
      return kInfinity;
    }
    largest = std::max(largest, difference);
  }
  return largest;
}

bool same_bits(ConstTensorView a, ConstTensorView b) {
  return a.dtype == b.dtype && a.num_elements() == b.num_elements() &&
         (a.bytes() == 0 || std::memcmp(a.data, b.data, a.bytes()) == 0);
}

std::vector<float> random_floats(std::string_view name, size_t count, float deviation) {
  const PhiloxStream stream(1234, RngPurpose::kTest, stream_of(name));
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = deviation * stream.normal(i);
  }
  return values;
}

}  // namespace ashlar
