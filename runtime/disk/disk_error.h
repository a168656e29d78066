// What a failed operation on a file says to the user.
#pragma once

#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/base/error.h"

namespace ashlar {

// Pure. errno as text; std::strerror is not safe with thread ranks.
std::string errno_text(int code);

// Blocks the host. Bytes that this user may still write where `path` is (or would be); 0 when nobody can say.
uint64_t free_bytes(const std::filesystem::path& path);

// Who failed: the disk, a test that asked for it, or perhaps another job that took away what this one works on.
enum class FailedBy { kDisk, kTest, kOtherJob };

// Blocks the host. Throws Error(code): "<action> <path>: <errno>", a limit of the shell, a test or another job where
// that was it, and the bytes needed and free where space was.
[[noreturn]] void throw_disk_error(ErrorCode code, std::string_view action, const std::filesystem::path& path,
                                   int error_number, uint64_t needed_bytes, FailedBy failed_by = FailedBy::kDisk);

// A write beyond `ulimit -f` sends SIGXFSZ, which kills the job by default. While this lives, the signal is held back
// from this thread, so the write returns EFBIG; the signal that such a write left pending is taken away again. No
// process-wide setting changes.
class HoldFileSizeSignal {
 public:
  HoldFileSizeSignal();
  ~HoldFileSizeSignal();  // leaves errno as it is
  HoldFileSizeSignal(const HoldFileSizeSignal&) = delete;
  HoldFileSizeSignal& operator=(const HoldFileSizeSignal&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace ashlar
