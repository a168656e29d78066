#include "runtime/tensor/tensor.h"

namespace ashlar {
namespace {

template <typename View>
View reshape_view(View view, const Shape& shape) {
  DCHECK(shape.num_elements() == view.shape.num_elements(), "{} does not reshape to {}", view.shape.text(),
         shape.text());
  view.shape = shape;
  return view;
}

template <typename View>
View slice_view(View view, int64_t begin, int64_t end) {
  DCHECK(view.shape.num_dims() > 0 && 0 <= begin && begin <= end && end <= view.shape[0],
         "rows [{},{}) of a tensor of shape {}", begin, end, view.shape.text());
  const int64_t rows = view.shape[0];
  const size_t row_bytes = rows == 0 ? 0 : view.bytes() / static_cast<size_t>(rows);
  if (view.data != nullptr) {
    view.data += static_cast<size_t>(begin) * row_bytes;
  }
  view.shape.set(0, end - begin);
  return view;
}

}  // namespace

ConstTensorView ConstTensorView::reshaped(Shape new_shape) const {
  return reshape_view(*this, new_shape);
}
ConstTensorView ConstTensorView::slice(int64_t begin, int64_t end) const {
  return slice_view(*this, begin, end);
}
TensorView TensorView::reshaped(Shape new_shape) const {
  return reshape_view(*this, new_shape);
}
TensorView TensorView::slice(int64_t begin, int64_t end) const {
  return slice_view(*this, begin, end);
}

TensorView take_tensor(Arena& arena, DType dtype, Shape shape) {
  return {arena.take(static_cast<size_t>(shape.num_elements()) * dtype_bytes(dtype)), dtype, shape};
}

Tensor::Tensor(Device& device, DType dtype, Shape shape, const std::string& what, MemoryItem item)
    : buffer_(device.allocate(static_cast<size_t>(shape.num_elements()) * dtype_bytes(dtype), what, item)),
      view_{buffer_.data(), dtype, shape} {}

}  // namespace ashlar
