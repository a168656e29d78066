// The seam between files and the kernel: pieces of reading and writing are put in, and come out when they are done.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace ashlar {

enum class IoKind { kRead, kWrite };

struct IoPiece {
  IoKind kind = IoKind::kRead;
  int file = -1;
  uint64_t offset = 0;
  std::byte* data = nullptr;  // only read when writing; stays as it is until the piece comes out
  size_t bytes = 0;
  uint64_t tag = 0;  // comes out again
};

struct IoDone {
  uint64_t tag = 0;
  int64_t result = 0;       // bytes, which may be fewer than were asked for; or -errno
  bool is_of_test = false;  // a failure that a test asked for
};

// One thread's. At most kDepth pieces are in it.
class IoQueue {
 public:
  static constexpr unsigned kDepth = 256;

  virtual ~IoQueue() = default;
  virtual std::string name() const = 0;  // for the log
  virtual void put(const IoPiece& piece) = 0;
  virtual void flush() = 0;  // what was put may begin
  // Blocks the host for at most `seconds`; empty where nothing was done by then. In any order.
  virtual std::optional<IoDone> take(double seconds) = 0;
};

// The kernel's queue, or nullptr and the reason. In uring/.
std::unique_ptr<IoQueue> open_uring_queue(std::string& reason);

// Pieces are read and written when they are put in: put() blocks the host.
std::unique_ptr<IoQueue> make_plain_queue(const std::string& reason);

// The best queue that this machine has; its name says which.
std::unique_ptr<IoQueue> open_io_queue();

// What tests ask of a disk.
struct DiskFaults {
  int64_t fail_after = -1;  // bytes of writes that succeed; pieces behind them fail with `fail_errno`. -1: never
  int fail_errno = ENOSPC;
};
std::unique_ptr<IoQueue> make_faulty_queue(std::unique_ptr<IoQueue> queue, DiskFaults faults);

}  // namespace ashlar
