#include "runtime/device/device.h"

#include <utility>

#include "runtime/base/error.h"

namespace ashlar {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    device_->allocated_bytes_ -= static_cast<int64_t>(bytes_);
    device_->free_bytes(data_, bytes_);
  }
}

Buffer Device::allocate(size_t bytes, const std::string& what) {
  if (bytes == 0) {
    return {};
  }
  std::byte* data = allocate_bytes(bytes);
  REQUIRE(data != nullptr, ErrorCode::kUsage,
          "out of memory: {} needs {} bytes more than the {} already held; use more ranks, a smaller "
          "--micro-batch-size or a smaller model",
          what, bytes, allocated_bytes());
  ++num_allocations_;
  allocated_bytes_ += static_cast<int64_t>(bytes);
  return Buffer(this, data, bytes);
}

}  // namespace ashlar
