#include "runtime/base/shape.h"

#include "runtime/base/error.h"

namespace ashlar {

Shape::Shape(std::initializer_list<int64_t> sizes) {
  for (const int64_t size : sizes) {
    append(size);
  }
}

int64_t Shape::operator[](int dim) const {
  const int at = dim < 0 ? dim + num_dims_ : dim;
  DCHECK(at >= 0 && at < num_dims_, "dim {} of a shape with {} dims", dim, num_dims_);
  return sizes_[static_cast<size_t>(at)];
}

int64_t Shape::num_elements() const {
  int64_t count = 1;
  for (int dim = 0; dim < num_dims_; ++dim) {
    // Beyond 2^63 elements the product would wrap around to a small number, and memory of that size would be written.
    DCHECK(!__builtin_mul_overflow(count, sizes_[static_cast<size_t>(dim)], &count), "{} has too many elements",
           text());
  }
  return count;
}

void Shape::append(int64_t size) {
  DCHECK(num_dims_ < kMaxDims, "a shape has at most {} dims", kMaxDims);
  DCHECK(size >= 0, "negative size {}", size);
  sizes_[static_cast<size_t>(num_dims_++)] = size;
}

void Shape::set(int dim, int64_t size) {
  const int at = dim < 0 ? dim + num_dims_ : dim;
  DCHECK(at >= 0 && at < num_dims_, "dim {} of a shape with {} dims", dim, num_dims_);
  sizes_[static_cast<size_t>(at)] = size;
}

bool Shape::operator==(const Shape& other) const {
  return num_dims_ == other.num_dims_ && sizes_ == other.sizes_;
}

std::string Shape::text() const {
  std::string out = "[";
  for (int dim = 0; dim < num_dims_; ++dim) {
    out += fmt::format("{}{}", dim ? "," : "", sizes_[static_cast<size_t>(dim)]);
  }
  return out + "]";
}

}  // namespace ashlar
