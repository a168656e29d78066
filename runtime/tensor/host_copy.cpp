#include "runtime/tensor/host_copy.h"

#include <algorithm>
#include <cstring>

namespace ashlar {

CopyPiece::CopyPiece(Device& device)
    : pinned(device.allocate_host(kBytes, "copies between host and device", MemoryItem::kCopies)),
      stream(device.create_stream()) {}

template <typename Copy>
void HostCopy::in_pieces(size_t bytes, Copy copy) {
  if (piece_ == nullptr) {
    piece_ = std::static_pointer_cast<CopyPiece>(device_.attached());
  }
  if (piece_ == nullptr) {
    piece_ = std::make_shared<CopyPiece>(device_);
    device_.attach(piece_);
  }
  for (size_t begin = 0; begin < bytes; begin += CopyPiece::kBytes) {
    copy(begin, std::min(CopyPiece::kBytes, bytes - begin));
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
    piece_->stream->copy(piece_->pinned.data(), static_cast<const std::byte*>(device) + begin, count);
    piece_->stream->synchronize();
    std::memcpy(static_cast<std::byte*>(host) + begin, piece_->pinned.data(), count);
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
    std::memcpy(piece_->pinned.data(), static_cast<const std::byte*>(host) + begin, count);
    piece_->stream->copy(static_cast<std::byte*>(device) + begin, piece_->pinned.data(), count);
    piece_->stream->synchronize();
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
