#include "runtime/checkpoint/storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/error.h"

namespace ashlar {
namespace fs = std::filesystem;

namespace {

// Large enough for full speed, small enough that a slow disk (bytes_per_second) is slow evenly.
constexpr size_t kChunkBytes = size_t{1} << 20;

// Of files in a directory that this job made or found: where it is gone, somebody else works there too.
[[noreturn]] void throw_disk_error(std::string_view action, const fs::path& path, int code, uint64_t needed_bytes,
                                   FailedBy failed_by = FailedBy::kDisk) {
  if (code == ENOENT && failed_by == FailedBy::kDisk) {
    failed_by = FailedBy::kOtherJob;
  }
  ashlar::throw_disk_error(ErrorCode::kCheckpoint, action, path, code, needed_bytes, failed_by);
}

}  // namespace

int64_t Storage::spend(int64_t units) {
  const int64_t allowed = options_.fail_after < 0 ? units : std::clamp<int64_t>(options_.fail_after - spent_, 0, units);
  spent_ += allowed;
  return allowed;
}

void Storage::spend_one(std::string_view action, const fs::path& path) {
  if (spend(1) == 0) {
    throw_disk_error(action, path, options_.fail_errno, 0, FailedBy::kTest);
  }
}

void Storage::wait_for_disk(size_t bytes) const {
  if (options_.bytes_per_second > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(bytes) / options_.bytes_per_second));
  }
}

void Storage::create_directory(const fs::path& path) {
  spend_one("cannot create directory", path);
  std::error_code code;
  fs::create_directories(path, code);
  if (code || !fs::is_directory(path)) {
    ashlar::throw_disk_error(ErrorCode::kCheckpoint, "cannot create directory", path, code ? code.value() : ENOTDIR, 0);
  }
}

void Storage::rename(const fs::path& from, const fs::path& to) {
  spend_one("cannot rename to", to);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw_disk_error("cannot rename to", to, errno, 0);
  }
}

void Storage::sync_directory(const fs::path& path) {
  spend_one("cannot sync directory", path);
  const int file = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) {
    throw_disk_error("cannot open directory", path, errno, 0);
  }
  const int failed = ::fsync(file);
  const int code = errno;
  ::close(file);
  // EINVAL: a file system that has no sync of directories (some network ones); renames are durable there by themselves.
  if (failed != 0 && code != EINVAL) {
    throw_disk_error("cannot sync directory", path, code, 0);
  }
}

void Storage::write_file(const fs::path& path, std::string_view text) {
  OutputFile file(*this, path, text.size());
  file.append(text.data(), text.size());
  file.finish();
}

bool Storage::try_rename(const fs::path& from, const fs::path& to) noexcept {
  return !options_.leave_files && ::rename(from.c_str(), to.c_str()) == 0;
}

bool Storage::try_remove_tree(const fs::path& path) noexcept {
  if (options_.leave_files && options_.fail_after >= 0 && spend(1) == 0) {
    return false;
  }
  std::error_code code;
  fs::remove_all(path, code);
  return !code;
}

OutputFile::OutputFile(Storage& storage, fs::path path, uint64_t needed_bytes, Mode mode)
    : storage_(storage), path_(std::move(path)), needed_bytes_(needed_bytes) {
  if (storage_.spend(1) == 0) {
    throw_disk_error("cannot create", path_, storage_.options_.fail_errno, needed_bytes_, FailedBy::kTest);
  }
  const int flags = O_WRONLY | O_CLOEXEC | (mode == Mode::kCreate ? O_CREAT | O_TRUNC : 0);
  file_ = ::open(path_.c_str(), flags, 0644);
  if (file_ < 0) {
    throw_disk_error("cannot create", path_, errno, needed_bytes_);
  }
}

OutputFile::~OutputFile() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

void OutputFile::append(const void* data, size_t bytes) {
  write_at(position_, data, bytes);
  position_ += bytes;
}

void OutputFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  const HoldFileSizeSignal hold;
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const size_t chunk = std::min(bytes, kChunkBytes);
    const size_t allowed = static_cast<size_t>(storage_.spend(static_cast<int64_t>(chunk)));
    ssize_t written = 0;
    if (allowed > 0) {
      storage_.wait_for_disk(allowed);
      written = ::pwrite(file_, from, allowed, static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) {
        written = 0;
        storage_.spent_ -= static_cast<int64_t>(allowed);
        continue;
      }
      if (written <= 0) {  // 0 is no progress, which POSIX allows only for a full device
        throw_disk_error("cannot write", path_, written == 0 ? ENOSPC : errno, needed_bytes_);
      }
      storage_.spent_ -= static_cast<int64_t>(allowed) - written;
    }
    if (allowed < chunk) {
      throw_disk_error("cannot write", path_, storage_.options_.fail_errno, needed_bytes_, FailedBy::kTest);
    }
    from += written;
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<size_t>(written);
  }
}

void OutputFile::resize(uint64_t bytes) {
  const HoldFileSizeSignal hold;
  storage_.spend_one("cannot resize", path_);
  if (::ftruncate(file_, static_cast<off_t>(bytes)) != 0) {
    throw_disk_error("cannot resize", path_, errno, bytes);
  }
}

void OutputFile::finish() {
  storage_.spend_one("cannot sync", path_);
  if (::fsync(file_) != 0) {  // delayed allocation reports a full disk or quota only here
    throw_disk_error("cannot sync", path_, errno, needed_bytes_);
  }
  if (::close(std::exchange(file_, -1)) != 0) {
    throw_disk_error("cannot close", path_, errno, needed_bytes_);
  }
}

InputFile::InputFile(fs::path path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a fifo would wait for a writer
  const int code = errno;
  REQUIRE(file_ >= 0, ErrorCode::kCheckpoint, "cannot read {}: {}", path_.string(), errno_text(code));
  struct stat status {};
  if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file_);
    throw Error(ErrorCode::kCheckpoint, fmt::format("cannot read {}: not a regular file", path_.string()));
  }
  bytes_ = static_cast<uint64_t>(status.st_size);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(other.bytes_), file_(std::exchange(other.file_, -1)) {}

InputFile::~InputFile() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

void InputFile::read_at(uint64_t offset, void* data, size_t bytes) const {
  char* to = static_cast<char*>(data);
  size_t done = 0;
  while (done < bytes) {
    const ssize_t count = ::pread(file_, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    const int code = errno;
    REQUIRE(count >= 0, ErrorCode::kCheckpoint, "cannot read {}: {}", path_.string(), errno_text(code));
    REQUIRE(count > 0, ErrorCode::kCheckpoint, "{} is cut short: expected {} bytes at offset {}, found {}",
            path_.string(), bytes, offset, done);
    done += static_cast<size_t>(count);
  }
}

bool path_exists(const fs::path& path) noexcept {
  std::error_code code;
  return fs::exists(path, code);
}

std::string read_file(const fs::path& path) {
  const InputFile file(path);
  std::string text(file.bytes(), '\0');
  file.read_at(0, text.data(), text.size());
  return text;
}

}  // namespace ashlar
