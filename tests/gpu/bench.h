// A device to measure on: random operands, and the time of what is put on its streams.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/plain_types.h"
#include "runtime/tensor/tensor.h"

namespace ashlar {

class Bench {
 public:
  // `tiny`: sizes for the emulator, where only the calls matter.
  explicit Bench(bool tiny);

  bool tiny() const { return tiny_; }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  // A further stream, whose matrix products are done as told.
  std::unique_ptr<Stream> stream_with(kernels::GemmKind gemm);

  // Blocks the host. Normal numbers times `scale`: zeros and ones let a GPU run faster than training does.
  Tensor random(DType dtype, Shape shape, double scale = 1);
  Tensor empty(DType dtype, Shape shape) { return Tensor(*device_, dtype, shape, "operands"); }
  Tensor filled(DType dtype, Shape shape, double value);
  Tensor integers(int64_t count, int64_t bound);  // int32 in [0, bound)
  // int32: the stable order of `keys` by value.
  Tensor order_of(const Tensor& keys);
  // Blocks the host. The first elements, at most `most`.
  std::vector<float> values(ConstTensorView x, int64_t most);

  // Blocks the host. The median of 20 runs on the stream, each after everything that caches held was overwritten; the
  // first runs are not counted.
  double seconds(Stream& stream, const std::function<void()>& run);
  double seconds(const std::function<void()>& run) { return seconds(*stream_, run); }

  // Blocks the host. Bytes per second, read and written, of a copy within the device.
  double copy_rate();
  // Blocks the host. FLOP/s of a large bf16 product by cuBLASLt.
  double matmul_rate();

 private:
  void upload(TensorView x, const std::function<void(std::byte* chunk, int64_t first, int64_t count)>& fill);

  bool tiny_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Buffer staging_;  // of the host
  Buffer flushed_;  // larger than every cache
  std::vector<float> normals_;
};

}  // namespace ashlar
