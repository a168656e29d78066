#include <liburing.h>

#include <cerrno>
#include <cmath>

#include "runtime/disk/disk_error.h"
#include "runtime/disk/io_queue.h"

namespace ashlar {
namespace {

class UringQueue final : public IoQueue {
 public:
  explicit UringQueue(const io_uring& ring) : ring_(ring) {}
  ~UringQueue() override { io_uring_queue_exit(&ring_); }

  std::string name() const override { return "io_uring"; }

  void put(const IoPiece& piece) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    DCHECK(entry != nullptr, "{} pieces are in the queue", kDepth);
    const auto bytes = static_cast<unsigned>(piece.bytes);
    if (piece.kind == IoKind::kRead) {
      io_uring_prep_read(entry, piece.file, piece.data, bytes, piece.offset);
    } else {
      io_uring_prep_write(entry, piece.file, piece.data, bytes, piece.offset);
    }
    io_uring_sqe_set_data64(entry, piece.tag);
  }

  void flush() override {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int result = io_uring_submit(&ring_);
      // EAGAIN and EBUSY: the kernel is short of memory or of room for what is done; take() submits again.
      if (result == -EAGAIN || result == -EBUSY) {
        return;
      }
      REQUIRE(result >= 0 || result == -EINTR, ErrorCode::kCheckpoint, "io_uring_submit: {}", errno_text(-result));
    }
  }

  std::optional<IoDone> take(double seconds) override {
    flush();
    io_uring_cqe* entry = nullptr;
    const double whole = std::floor(seconds);
    __kernel_timespec limit{static_cast<long long>(whole), static_cast<long long>((seconds - whole) * 1e9)};
    const int result = io_uring_wait_cqe_timeout(&ring_, &entry, &limit);
    if (result == -ETIME || result == -EINTR || result == -EAGAIN || result == -EBUSY) {
      return std::nullopt;
    }
    REQUIRE(result == 0, ErrorCode::kCheckpoint, "io_uring_wait_cqe_timeout: {}", errno_text(-result));
    const IoDone done{io_uring_cqe_get_data64(entry), entry->res, false};
    io_uring_cqe_seen(&ring_, entry);
    return done;
  }

 private:
  io_uring ring_;
};

}  // namespace

std::unique_ptr<IoQueue> open_uring_queue(std::string& reason) {
  io_uring ring{};
  if (const int error = io_uring_queue_init(IoQueue::kDepth, &ring, 0); error != 0) {
    reason = "io_uring_queue_init: " + errno_text(-error);
    return nullptr;
  }
  return std::make_unique<UringQueue>(ring);
}

}  // namespace ashlar
