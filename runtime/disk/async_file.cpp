#include "runtime/disk/async_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <numeric>

namespace ashlar {
namespace {

constexpr double kSliceSeconds = 0.1;  // of a wait, between two looks at whether it still makes sense
constexpr double kLeaveSeconds = 10;   // at most, for what is under way when a file is closed

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Memory that O_DIRECT takes.
struct AlignedBlock {
  std::byte* data;
  explicit AlignedBlock(size_t bytes)
      : data(static_cast<std::byte*>(std::aligned_alloc(AsyncFile::kAlignment, bytes))) {
    REQUIRE(data != nullptr, ErrorCode::kCheckpoint, "out of memory: {} bytes for a block of a file", bytes);
    std::fill_n(data, bytes, std::byte{0});
  }
  ~AlignedBlock() { std::free(data); }
  AlignedBlock(const AlignedBlock&) = delete;
  AlignedBlock& operator=(const AlignedBlock&) = delete;
};

}  // namespace

AsyncFile::AsyncFile(const std::filesystem::path& directory, uint64_t bytes, std::unique_ptr<IoQueue> queue,
                     AsyncFileOptions options)
    : bytes_(bytes), queue_(std::move(queue)), options_(std::move(options)) {
  DCHECK(bytes > 0 && bytes % kAlignment == 0, "a file of {} bytes", bytes);
  std::iota(free_slots_.begin(), free_slots_.end(), uint64_t{0});
  std::string name = (directory / "ashlar_offload_XXXXXX").string();
  file_ = ::mkostemp(name.data(), O_CLOEXEC);
  path_ = name;
  if (file_ < 0) {
    throw_disk_error(ErrorCode::kCheckpoint, "cannot create", path_, errno, bytes);
  }
  ::unlink(name.c_str());
  try {
    reserve();
    try_direct();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

AsyncFile::~AsyncFile() {
  const double end = steady_seconds() + std::min(options_.deadline_seconds, kLeaveSeconds);
  try {
    while (num_free_ < IoQueue::kDepth && steady_seconds() < end) {
      if (const std::optional<IoDone> done = queue_->take(kSliceSeconds)) {
        free_slots_[num_free_++] = done->tag;
      }
    }
  } catch (const std::exception&) {  // closing is all that is left to do
  }
  queue_.reset();
  ::close(file_);
}

// Where the file system cannot promise space, writing zeros takes it.
void AsyncFile::reserve() {
  const HoldFileSizeSignal hold;
  int result = 0;
  do {
    result = ::fallocate(file_, 0, 0, static_cast<off_t>(bytes_));
  } while (result != 0 && errno == EINTR);
  reserved_ = result == 0;
  if (reserved_) {
    return;
  }
  if (errno != EOPNOTSUPP && errno != ENOSYS) {
    throw_disk_error(ErrorCode::kCheckpoint, "cannot reserve space for", path_, errno, bytes_);
  }
  const AlignedBlock zeros(kPieceBytes);
  for (uint64_t at = 0; at < bytes_;) {
    const size_t count = static_cast<size_t>(std::min<uint64_t>(bytes_ - at, kPieceBytes));
    const ssize_t written = ::pwrite(file_, zeros.data, count, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      throw_disk_error(ErrorCode::kCheckpoint, "cannot reserve space for", path_, written == 0 ? ENOSPC : errno,
                       bytes_);
    }
    at += static_cast<uint64_t>(written);
  }
}

// Some file systems take the flag and refuse the first write.
void AsyncFile::try_direct() {
  const int flags = ::fcntl(file_, F_GETFL);
  if (::fcntl(file_, F_SETFL, flags | O_DIRECT) != 0) {
    return;
  }
  const AlignedBlock zeros(kAlignment);
  direct_ = ::pwrite(file_, zeros.data, kAlignment, 0) == static_cast<ssize_t>(kAlignment);
  if (!direct_) {
    ::fcntl(file_, F_SETFL, flags);
  }
}

std::string AsyncFile::how() const {
  return fmt::format("{}, {}{}", queue_->name(),
                     direct_ ? "past the page cache" : "through the page cache (the file system takes no O_DIRECT)",
                     reserved_ ? "" : ", space taken by writing zeros (the file system takes no fallocate)");
}

AsyncFile::Request AsyncFile::start_read(uint64_t offset, std::byte* data, size_t bytes) {
  return start(IoKind::kRead, offset, data, bytes);
}

AsyncFile::Request AsyncFile::start_write(uint64_t offset, const std::byte* data, size_t bytes) {
  return start(IoKind::kWrite, offset, const_cast<std::byte*>(data), bytes);
}

AsyncFile::Request AsyncFile::start(IoKind kind, uint64_t offset, std::byte* data, size_t bytes) {
  check_intact();
  DCHECK(offset % kAlignment == 0 && bytes % kAlignment == 0 && reinterpret_cast<uintptr_t>(data) % kAlignment == 0,
         "{} bytes at offset {}", bytes, offset);
  DCHECK(offset + bytes <= bytes_, "{} bytes at offset {} of a file of {}", bytes, offset, bytes_);
  const Request request = next_request_++;
  size_t& left = pieces_left_[request % kMaxRequests];
  while (left > 0) {
    take_one();
  }
  for (size_t at = 0; at < bytes; at += kPieceBytes) {
    while (num_free_ == 0) {
      queue_->flush();
      take_one();
    }
    const uint64_t tag = free_slots_[--num_free_];
    slots_[tag] = {{kind, file_, offset + at, data + at, std::min(kPieceBytes, bytes - at), tag}, request};
    ++left;
    queue_->put(slots_[tag].piece);
  }
  queue_->flush();
  return request;
}

void AsyncFile::wait(Request request) {
  check_intact();
  DCHECK(request < next_request_, "request {} of {}", request, next_request_);
  // What was started long ago has made room for another, and is done.
  while (request + kMaxRequests >= next_request_ && pieces_left_[request % kMaxRequests] > 0) {
    take_one();
  }
}

void AsyncFile::take_one() {
  const double start = steady_seconds();
  while (true) {
    if (const std::optional<IoDone> done = queue_->take(kSliceSeconds)) {
      return take(*done);
    }
    if (options_.keep_waiting) {
      options_.keep_waiting();
    }
    const double waited = steady_seconds() - start;
    if (waited > options_.deadline_seconds) {
      failure_ = fmt::format("{}: the disk has not answered for {:.1f} s (see --distributed-timeout-minutes)",
                             path_.string(), waited);
      throw Error(ErrorCode::kTimeout, failure_);
    }
  }
}

void AsyncFile::take(const IoDone& done) {
  Slot& slot = slots_[done.tag];
  IoPiece& piece = slot.piece;
  if (done.result <= 0 && done.result != -EINTR && done.result != -EAGAIN) {
    free_slots_[num_free_++] = done.tag;
    --pieces_left_[slot.request % kMaxRequests];
    // Nothing written means a full disk; nothing read, that somebody cut the file.
    fail(piece,
         done.result < 0                ? static_cast<int>(-done.result)
         : piece.kind == IoKind::kWrite ? ENOSPC
                                        : EIO,
         done.is_of_test ? FailedBy::kTest : FailedBy::kDisk);
  }
  const auto count = static_cast<size_t>(std::max<int64_t>(done.result, 0));
  piece.offset += count;
  piece.data += count;
  piece.bytes -= count;
  if (piece.bytes > 0) {
    queue_->put(piece);
    queue_->flush();
    return;
  }
  free_slots_[num_free_++] = done.tag;
  --pieces_left_[slot.request % kMaxRequests];
}

void AsyncFile::fail(const IoPiece& piece, int error_number, FailedBy failed_by) {
  try {
    throw_disk_error(ErrorCode::kCheckpoint,
                     fmt::format("cannot {} {} bytes at offset {} of", piece.kind == IoKind::kRead ? "read" : "write",
                                 piece.bytes, piece.offset),
                     path_, error_number, bytes_, failed_by);
  } catch (const Error& error) {
    failure_ = error.what();
    throw;
  }
}

void AsyncFile::check_intact() const {
  REQUIRE(failure_.empty(), ErrorCode::kCheckpoint, "{}", failure_);
}

}  // namespace ashlar
