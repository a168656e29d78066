// A file mapped into memory for reading: pages come in when they are touched, so a file of any size costs no memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "runtime/base/error.h"

namespace ashlar {

class MappedFile {
 public:
  // Throws Error(kData) naming the path and the system's reason. The file must not shrink while it is mapped: the
  // kernel answers a read beyond the new end with SIGBUS, which no program can turn into an error message of its own.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  // Pure. A value at any byte offset: index files do not align their sections, so this copies and never casts.
  template <typename T>
  T at(size_t offset) const {
    DCHECK(offset <= size_ && sizeof(T) <= size_ - offset, "{}: offset {} of {}", path_, offset, size_);
    T value;
    std::memcpy(&value, data_ + offset, sizeof(T));
    return value;
  }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ashlar
