// A directory of a test's own, removed with everything in it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace ashlar {

class ScratchDir {
 public:
  // In memory where the machine allows it: these tests sync thousands of times, which a disk would feel.
  ScratchDir() {
    std::error_code code;
    const std::filesystem::path base =
        std::filesystem::is_directory("/dev/shm", code) ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string name = (base / "ashlar_test_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("mkdtemp failed for " + name);
    }
    path_ = name;
  }
  ~ScratchDir() {
    std::error_code code;
    std::filesystem::remove_all(path_, code);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace ashlar
