#include "runtime/device/device.h"

#include <utility>

#include "runtime/base/error.h"

namespace ashlar {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(kind_, other.kind_);
  std::swap(item_, other.item_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    device_->counts_[static_cast<size_t>(kind_)].add(item_, -static_cast<int64_t>(bytes_));
    device_->free_bytes(kind_, data_, bytes_);
  }
}

Buffer Device::allocate(size_t bytes, const std::string& what, MemoryItem item) {
  if (bytes == 0) {
    return {};
  }
  std::byte* data = allocate_bytes(MemoryKind::kDevice, bytes);
  REQUIRE(data != nullptr, ErrorCode::kUsage,
          "out of memory: {} needs {} bytes more than the {} already held; use more ranks, a smaller "
          "--micro-batch-size or a smaller model",
          what, bytes, allocated_bytes());
  ++num_allocations_;
  counts_[static_cast<size_t>(MemoryKind::kDevice)].add(item, static_cast<int64_t>(bytes));
  return Buffer(this, MemoryKind::kDevice, item, data, bytes);
}

Buffer Device::allocate_host(size_t bytes, const std::string& what, MemoryItem item) {
  if (bytes == 0) {
    return {};
  }
  std::byte* data = allocate_bytes(MemoryKind::kHost, bytes);
  REQUIRE(data != nullptr, ErrorCode::kUsage,
          "out of host memory: {} needs {} bytes, which the device can pin; use fewer ranks on this host or raise its "
          "locked-memory limit (ulimit -l)",
          what, bytes);
  ++num_allocations_;
  counts_[static_cast<size_t>(MemoryKind::kHost)].add(item, static_cast<int64_t>(bytes));
  return Buffer(this, MemoryKind::kHost, item, data, bytes);
}

}  // namespace ashlar
