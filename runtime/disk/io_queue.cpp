#include "runtime/disk/io_queue.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

class PlainQueue final : public IoQueue {
 public:
  explicit PlainQueue(std::string reason) : reason_(std::move(reason)) {}

  std::string name() const override { return "piece by piece, the run waits for its disk (" + reason_ + ")"; }

  void put(const IoPiece& piece) override {
    DCHECK(num_put_ - num_taken_ < kDepth, "{} pieces are in the queue", kDepth);
    const auto offset = static_cast<off_t>(piece.offset);
    const ssize_t result = piece.kind == IoKind::kRead ? ::pread(piece.file, piece.data, piece.bytes, offset)
                                                       : ::pwrite(piece.file, piece.data, piece.bytes, offset);
    done_[num_put_++ % kDepth] = {piece.tag, result < 0 ? -errno : result, false};
  }

  void flush() override {}

  std::optional<IoDone> take(double) override {
    return num_taken_ == num_put_ ? std::nullopt : std::optional(done_[num_taken_++ % kDepth]);
  }

 private:
  std::string reason_;
  std::array<IoDone, kDepth> done_{};
  uint64_t num_put_ = 0;
  uint64_t num_taken_ = 0;
};

class FaultyQueue final : public IoQueue {
 public:
  FaultyQueue(std::unique_ptr<IoQueue> queue, DiskFaults faults) : queue_(std::move(queue)), faults_(faults) {}

  std::string name() const override { return queue_->name(); }

  void put(const IoPiece& piece) override {
    if (piece.kind == IoKind::kWrite && faults_.fail_after >= 0) {
      written_ += static_cast<int64_t>(piece.bytes);
      if (written_ > faults_.fail_after) {
        failed_.push_back({piece.tag, -faults_.fail_errno, true});
        return;
      }
    }
    queue_->put(piece);
  }

  void flush() override { queue_->flush(); }

  std::optional<IoDone> take(double seconds) override {
    if (failed_.empty()) {
      return queue_->take(seconds);
    }
    const IoDone done = failed_.back();
    failed_.pop_back();
    return done;
  }

 private:
  std::unique_ptr<IoQueue> queue_;
  DiskFaults faults_;
  int64_t written_ = 0;
  std::vector<IoDone> failed_;
};

}  // namespace

std::unique_ptr<IoQueue> make_faulty_queue(std::unique_ptr<IoQueue> queue, DiskFaults faults) {
  return std::make_unique<FaultyQueue>(std::move(queue), faults);
}

std::unique_ptr<IoQueue> make_plain_queue(const std::string& reason) {
  return std::make_unique<PlainQueue>(reason);
}

std::unique_ptr<IoQueue> open_io_queue() {
  std::string reason;
  std::unique_ptr<IoQueue> queue = open_uring_queue(reason);
  return queue ? std::move(queue) : make_plain_queue(reason);
}

}  // namespace ashlar
