#include "runtime/tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "runtime/device/cpu/cpu_device.h"

namespace ashlar {
namespace {

TEST(TensorView, SlicesAndReshapesShareMemory) {
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0f);
  const TensorView view = view_of(values.data(), {4, 2, 3});
  EXPECT_EQ(view.bytes(), 96u);
  const TensorView rows = view.slice(1, 3);
  EXPECT_EQ(rows.shape, (Shape{2, 2, 3}));
  EXPECT_EQ(rows.as<float>(), values.data() + 6);
  const TensorView flat = rows.reshaped({12});
  flat.as<float>()[11] = 99.0f;
  EXPECT_EQ(values[17], 99.0f);
  const ConstTensorView readable = flat;
  EXPECT_EQ(readable.as<float>()[11], 99.0f);
  EXPECT_EQ(readable.slice(12, 12).num_elements(), 0);
  EXPECT_EQ(readable.reshaped({3, 4}).slice(2, 3).as<float>(), values.data() + 14);
}

TEST(TensorView, RefusesWrongTypesShapesAndRows) {
  std::vector<float> values(24);
  const TensorView view = view_of(values.data(), {4, 6});
  EXPECT_THROW(view.as<double>(), Error);
  EXPECT_THROW(view.as<BFloat16>(), Error);
  EXPECT_THROW(view.reshaped({5, 5}), Error);
  EXPECT_THROW(view.slice(-1, 2), Error);
  EXPECT_THROW(view.slice(3, 2), Error);
  EXPECT_THROW(view.slice(0, 5), Error);
  EXPECT_THROW(view_of(values.data(), {}).slice(0, 1), Error);
}

TEST(TakeTensor, CountsAlikeWithAndWithoutMemory) {
  CpuDevice device;
  Arena plan;
  const TensorView planned = take_tensor(plan, DType::kBF16, {3, 11});
  EXPECT_EQ(planned.data, nullptr);
  EXPECT_EQ(planned.slice(1, 2).data, nullptr);  // a view of planned memory stays without memory
  EXPECT_EQ(plan.used(), 128u);
  const Buffer buffer = device.allocate(plan.used(), "arena");
  Arena real(buffer.data(), buffer.bytes());
  const TensorView tensor = take_tensor(real, DType::kBF16, {3, 11});
  EXPECT_EQ(tensor.data, buffer.data());
  EXPECT_EQ(tensor.bytes(), 66u);
  EXPECT_EQ(tensor.slice(2, 3).data, buffer.data() + 44);
  EXPECT_EQ(real.used(), plan.used());
}

TEST(Tensor, OwnsMemoryOfItsShape) {
  CpuDevice device;
  {
    Tensor tensor(device, DType::kF64, {5, 7}, "test");
    EXPECT_EQ(device.allocated_bytes(), 5 * 7 * 8);
    tensor.as<double>()[34] = 1.5;
    const Tensor moved = std::move(tensor);
    EXPECT_EQ(moved.as<double>()[34], 1.5);
    EXPECT_EQ(moved.shape(), (Shape{5, 7}));
    EXPECT_EQ(device.num_allocations(), 1);
  }
  EXPECT_EQ(device.allocated_bytes(), 0);
}

}  // namespace
}  // namespace ashlar
