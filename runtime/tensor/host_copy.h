// Between memory of a device and ordinary host memory, for whatever is not part of a step: files, start values,
// reports.
#pragma once

#include <vector>

#include "runtime/tensor/tensor.h"

namespace ashlar {

// On a CPU both are the same memory. On a GPU data passes through one pinned buffer, piece by piece. All work on the
// device memory must be done (its stream synchronized) before a call. Not shared between threads.
class HostCopy {
 public:
  explicit HostCopy(Device& device) : device_(device) {}

  // Block the host.
  void to_host(void* host, const void* device, size_t bytes);
  void to_device(void* device, const void* host, size_t bytes);

  // Blocks the host. The tensor as the host can read it: where it lies on a CPU, a copy in `scratch` on a GPU.
  ConstTensorView on_host(ConstTensorView x, std::vector<std::byte>& scratch);

 private:
  static constexpr size_t kPieceBytes = size_t{4} << 20;

  template <typename Copy>
  void in_pieces(size_t bytes, Copy copy);

  Device& device_;
  Buffer pinned_;  // from the first copy on a GPU
  std::unique_ptr<Stream> stream_;
};

}  // namespace ashlar
