#include "runtime/disk/disk_error.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <time.h>

#include <cerrno>
#include <system_error>

namespace ashlar {
namespace fs = std::filesystem;

std::string errno_text(int code) {
  return std::system_category().message(code);
}

uint64_t free_bytes(const fs::path& path) {
  std::error_code code;
  fs::path place = fs::absolute(path, code);
  while (place.has_relative_path() && !fs::exists(place, code)) {
    place = place.parent_path();
  }
  struct statvfs status {};
  if (::statvfs(place.c_str(), &status) != 0) {
    return 0;
  }
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

void throw_disk_error(ErrorCode code, std::string_view action, const fs::path& path, int error_number,
                      uint64_t needed_bytes, FailedBy failed_by) {
  std::string message = fmt::format("{} {}: {}", action, path.string(), errno_text(error_number));
  if (failed_by == FailedBy::kTest) {
    message += " (as a test asked for; the disk did not fail)";
  } else if (failed_by == FailedBy::kOtherJob) {
    message += " (another job may be writing into this directory)";
  } else if (error_number == EFBIG) {
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    message += fmt::format(" (the shell's ulimit -f allows {} bytes a file)", limit.rlim_cur);
  }
  const bool is_space = error_number == ENOSPC || error_number == EDQUOT;
  if (is_space || error_number == EFBIG) {
    message += fmt::format("; needed {} bytes", needed_bytes);
  }
  if (is_space) {
    message += fmt::format(", free {} bytes", free_bytes(path));
  }
  throw Error(code, message);
}

HoldFileSizeSignal::HoldFileSizeSignal() {
  sigemptyset(&signal_);
  sigaddset(&signal_, SIGXFSZ);
  sigset_t pending;
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
  pthread_sigmask(SIG_BLOCK, &signal_, &before_);
}

HoldFileSizeSignal::~HoldFileSizeSignal() {
  const int code = errno;
  if (!was_pending_) {
    const timespec at_once{0, 0};
    while (sigtimedwait(&signal_, nullptr, &at_once) == -1 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = code;
}

}  // namespace ashlar
