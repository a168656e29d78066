// Sizes of a tensor: at most five dims, held inline so that shapes never allocate.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace ashlar {

class Shape {
 public:
  static constexpr int kMaxDims = 5;

  Shape() = default;  // a scalar: no dims, one element
  Shape(std::initializer_list<int64_t> sizes);

  int num_dims() const { return num_dims_; }
  int64_t operator[](int dim) const;  // negative dims count from the end
  int64_t num_elements() const;
  void append(int64_t size);
  void set(int dim, int64_t size);

  bool operator==(const Shape& other) const;
  std::string text() const;  // "[4,64,768]"

 private:
  std::array<int64_t, kMaxDims> sizes_{};
  int num_dims_ = 0;
};

}  // namespace ashlar
