#include "runtime/tensor/host_copy.h"

#include <algorithm>
#include <cstring>

namespace ashlar {

template <typename Copy>
void HostCopy::in_pieces(size_t bytes, Copy copy) {
  if (stream_ == nullptr) {
    pinned_ = device_.allocate_host(kPieceBytes, "copies between host and device");
    stream_ = device_.create_stream();
  }
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
    copy(begin, std::min(kPieceBytes, bytes - begin));
  }
}

void HostCopy::to_host(void* host, const void* device, size_t bytes) {
  if (bytes == 0) {
    return;  // an empty piece may have no address
  }
  if (device_.kind() == DeviceKind::kCpu) {
    std::memcpy(host, device, bytes);
    return;
  }
  in_pieces(bytes, [&](size_t begin, size_t count) {
    stream_->copy(pinned_.data(), static_cast<const std::byte*>(device) + begin, count);
    stream_->synchronize();
    std::memcpy(static_cast<std::byte*>(host) + begin, pinned_.data(), count);
  });
}

void HostCopy::to_device(void* device, const void* host, size_t bytes) {
  if (bytes == 0) {
    return;  // an empty piece may have no address
  }
  if (device_.kind() == DeviceKind::kCpu) {
    std::memcpy(device, host, bytes);
    return;
  }
  in_pieces(bytes, [&](size_t begin, size_t count) {
    std::memcpy(pinned_.data(), static_cast<const std::byte*>(host) + begin, count);
    stream_->copy(static_cast<std::byte*>(device) + begin, pinned_.data(), count);
    stream_->synchronize();
  });
}

ConstTensorView HostCopy::on_host(ConstTensorView x, std::vector<std::byte>& scratch) {
  if (device_.kind() == DeviceKind::kCpu) {
    return x;
  }
  scratch.resize(x.bytes());
  to_host(scratch.data(), x.data, x.bytes());
  return {scratch.data(), x.dtype, x.shape};
}

}  // namespace ashlar
