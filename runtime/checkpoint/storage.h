// Files that end up whole and on the disk, or as an error that names the path, the bytes needed and the bytes free.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/disk/disk_error.h"

namespace ashlar {

// What tests ask of the disk; the default is the disk as it is. One unit is spent for each byte written and for each
// create, rename and sync, so stepping `fail_after` over 0, 1, 2, ... visits every state a save can be left in.
struct StorageOptions {
  int64_t fail_after = -1;  // units that succeed; everything behind them fails with `fail_errno`. -1: never
  int fail_errno = ENOSPC;
  bool leave_files = false;     // as if the job were killed at the failure: nothing is cleaned up behind it
  double bytes_per_second = 0;  // a slow disk; 0: as fast as it is
};

// The only way this folder changes the disk. One per rank and save; not shared between threads.
class Storage {
 public:
  explicit Storage(StorageOptions options = {}) : options_(options) {}

  const StorageOptions& options() const { return options_; }

  // All: Blocks the host. Throws Error(kCheckpoint).
  void create_directory(const std::filesystem::path& path);                         // and its parents
  void rename(const std::filesystem::path& from, const std::filesystem::path& to);  // atomic, replaces `to`
  void sync_directory(const std::filesystem::path& path);                           // makes renames in it durable
  void write_file(const std::filesystem::path& path, std::string_view text);        // a whole file, synced
  // For going back after an error, which is the one to report: these say whether it worked, and do not count as units.
  bool try_rename(const std::filesystem::path& from, const std::filesystem::path& to) noexcept;
  bool try_remove_tree(const std::filesystem::path& path) noexcept;

 private:
  friend class OutputFile;
  // Spends up to `units` and returns how many of them may happen; fewer means that the rest has to fail.
  int64_t spend(int64_t units);
  void spend_one(std::string_view action, const std::filesystem::path& path);
  void wait_for_disk(size_t bytes) const;

  StorageOptions options_;
  int64_t spent_ = 0;
};

// A file being written. Several ranks may write parts of one file: one creates it, the others open it.
class OutputFile {
 public:
  enum class Mode { kCreate, kOpen };

  // Blocks the host. `needed_bytes` is what this rank is going to write: it stands in the message when the disk is
  // full.
  OutputFile(Storage& storage, std::filesystem::path path, uint64_t needed_bytes, Mode mode = Mode::kCreate);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(const void* data, size_t bytes);                     // Blocks the host.
  void write_at(uint64_t offset, const void* data, size_t bytes);  // Blocks the host.
  void resize(uint64_t bytes);                                     // Blocks the host.
  void finish();                                                   // Blocks the host: synced and closed.

 private:
  Storage& storage_;
  std::filesystem::path path_;
  uint64_t needed_bytes_;
  uint64_t position_ = 0;
  int file_ = -1;
};

// A file being read. Every short read is an error that names the file.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);  // Blocks the host.
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }
  void read_at(uint64_t offset, void* data, size_t bytes) const;  // Blocks the host.

 private:
  std::filesystem::path path_;
  uint64_t bytes_ = 0;
  int file_ = -1;
};

// Blocks the host. False also when it cannot be told; what then uses the path says why.
bool path_exists(const std::filesystem::path& path) noexcept;

// Blocks the host. A whole small file as text.
std::string read_file(const std::filesystem::path& path);

}  // namespace ashlar
