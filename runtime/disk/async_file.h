// A file of a run's own that is read and written while the run goes on computing.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <optional>

#include "runtime/disk/disk_error.h"
#include "runtime/disk/io_queue.h"

namespace ashlar {

struct AsyncFileOptions {
  double deadline_seconds = 600;  // without any piece done, from when on a wait fails
  // Called about ten times a second while the host waits; may throw to end the wait.
  std::function<void()> keep_waiting{};
};

// Its size is fixed, its space is taken at the start, so that a full disk is found then, and it has no name any more as
// soon as it is open: however the process ends, the space is free again. One thread's. The first failure of any piece
// stays: every call behind it throws the same Error(kCheckpoint), which names path, offset, and the bytes needed and
// free.
class AsyncFile {
 public:
  // Offsets, sizes and addresses are multiples of this, so that a disk can move the bytes without a copy in the page
  // cache (O_DIRECT), where the file system takes that.
  static constexpr size_t kAlignment = 4096;
  using Request = uint64_t;

  // Blocks the host. In `directory`, of zeros.
  AsyncFile(const std::filesystem::path& directory, uint64_t bytes, std::unique_ptr<IoQueue> queue,
            AsyncFileOptions options = {});
  ~AsyncFile();  // blocks the host until nothing is under way any more
  AsyncFile(const AsyncFile&) = delete;
  AsyncFile& operator=(const AsyncFile&) = delete;

  // Return at once, unless very much is under way. The memory is the file's until the request was waited for. Requests
  // overlap in time, so those on the same bytes need a wait between them.
  Request start_read(uint64_t offset, std::byte* data, size_t bytes);
  Request start_write(uint64_t offset, const std::byte* data, size_t bytes);
  void wait(Request request);  // Blocks the host.

  uint64_t bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }  // the name it had
  std::string how() const;                                     // what carries it, for the log

 private:
  static constexpr size_t kMaxRequests = 16;
  static constexpr size_t kPieceBytes = size_t{1} << 20;
  struct Slot {
    IoPiece piece;  // what is still to be done of it
    Request request = 0;
  };

  void reserve();
  void try_direct();
  Request start(IoKind kind, uint64_t offset, std::byte* data, size_t bytes);
  void take_one();
  void take(const IoDone& done);
  [[noreturn]] void fail(const IoPiece& piece, int error_number, FailedBy failed_by);
  void check_intact() const;

  std::filesystem::path path_;
  uint64_t bytes_;
  std::unique_ptr<IoQueue> queue_;
  AsyncFileOptions options_;
  int file_ = -1;
  bool direct_ = false;
  bool reserved_ = false;  // by the file system, without a write
  std::string failure_;
  std::array<Slot, IoQueue::kDepth> slots_;
  std::array<uint64_t, IoQueue::kDepth> free_slots_;
  size_t num_free_ = IoQueue::kDepth;
  Request next_request_ = 1;
  std::array<size_t, kMaxRequests> pieces_left_{};  // by request modulo its length
};

}  // namespace ashlar
