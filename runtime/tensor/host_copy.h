// Between memory of a device and ordinary host memory, for whatever is not part of a step: files, start values,
// reports.
#pragma once

#include <vector>

#include "runtime/tensor/tensor.h"

namespace ashlar {

// Pinned memory of a GPU's rank: one piece, however many HostCopy there are, so that plans can count it.
struct CopyPiece {
  static constexpr size_t kBytes = size_t{4} << 20;

  explicit CopyPiece(Device& device);

  Buffer pinned;
  std::unique_ptr<Stream> stream;
};

// On a CPU both are the same memory. On a GPU data passes through the pinned piece, part by part. All work on the
// device memory must be done (its stream synchronized) before a call. All of a device belong to one thread.
class HostCopy {
 public:
  explicit HostCopy(Device& device) : device_(device) {}

  // Block the host.
  void to_host(void* host, const void* device, size_t bytes);
  void to_device(void* device, const void* host, size_t bytes);

  // Blocks the host. The tensor as the host can read it: where it lies on a CPU, a copy in `scratch` on a GPU.
  ConstTensorView on_host(ConstTensorView x, std::vector<std::byte>& scratch);

 private:
  template <typename Copy>
  void in_pieces(size_t bytes, Copy copy);

  Device& device_;
  std::shared_ptr<CopyPiece> piece_;  // from the first copy on a GPU
};

}  // namespace ashlar
