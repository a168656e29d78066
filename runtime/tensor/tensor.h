// Tensors: contiguous, row-major. A view borrows memory and is passed by value; a Tensor owns it.
#pragma once

#include <string>

#include "runtime/base/dtype.h"
#include "runtime/base/error.h"
#include "runtime/base/shape.h"
#include "runtime/device/arena.h"
#include "runtime/device/device.h"

namespace ashlar {

struct ConstTensorView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  int64_t num_elements() const { return shape.num_elements(); }
  size_t bytes() const { return static_cast<size_t>(num_elements()) * dtype_bytes(dtype); }
  template <typename T>
  const T* as() const {
    DCHECK(dtype == DTypeOf<T>::value, "tensor holds {}", dtype_name(dtype));
    return reinterpret_cast<const T*>(data);
  }
  ConstTensorView reshaped(Shape new_shape) const;
  ConstTensorView slice(int64_t begin, int64_t end) const;  // rows [begin, end) of dim 0
};

struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  int64_t num_elements() const { return shape.num_elements(); }
  size_t bytes() const { return static_cast<size_t>(num_elements()) * dtype_bytes(dtype); }
  template <typename T>
  T* as() const {
    DCHECK(dtype == DTypeOf<T>::value, "tensor holds {}", dtype_name(dtype));
    return reinterpret_cast<T*>(data);
  }
  TensorView reshaped(Shape new_shape) const;
  TensorView slice(int64_t begin, int64_t end) const;                // rows [begin, end) of dim 0
  operator ConstTensorView() const { return {data, dtype, shape}; }  // NOLINT: a view of what may be read
};

// A view over plain host memory, for tests and loaders.
template <typename T>
TensorView view_of(T* data, Shape shape) {
  return {reinterpret_cast<std::byte*>(data), DTypeOf<T>::value, shape};
}
template <typename T>
ConstTensorView view_of(const T* data, Shape shape) {
  return {reinterpret_cast<const std::byte*>(data), DTypeOf<T>::value, shape};
}

// The next tensor of an arena; its data is null when the arena only counts.
TensorView take_tensor(Arena& arena, DType dtype, Shape shape);

class Tensor {
 public:
  Tensor() = default;
  // Blocks the host. Not zeroed.
  Tensor(Device& device, DType dtype, Shape shape, const std::string& what, MemoryItem item = MemoryItem::kOther);

  TensorView view() const { return view_; }
  operator TensorView() const { return view_; }       // NOLINT
  operator ConstTensorView() const { return view_; }  // NOLINT
  const Shape& shape() const { return view_.shape; }
  template <typename T>
  T* as() const {
    return view_.as<T>();
  }

 private:
  Buffer buffer_;
  TensorView view_;
};

}  // namespace ashlar
