// Names inside a checkpoint directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/checkpoint/storage.h"

namespace ashlar {

class CheckpointLayout {
 public:
  explicit CheckpointLayout(std::filesystem::path directory) : directory_(std::move(directory)) {}

  const std::filesystem::path& directory() const { return directory_; }
  std::filesystem::path set(int64_t iteration) const;           // iter_0000120
  std::filesystem::path new_set(int64_t iteration) const;       // .iter_0000120.tmp
  std::filesystem::path replaced_set(int64_t iteration) const;  // .iter_0000120.replaced
  std::filesystem::path mark() const;                           // latest_checkpointed_iteration.txt
  std::filesystem::path new_mark() const;                       // .latest_checkpointed_iteration.txt.tmp
  static std::string rank_file(int rank);                       // rank_00003.safetensors

 private:
  std::filesystem::path directory_;
};

// Pure. The iteration in "iter_0000120"; empty for any other name.
std::optional<int64_t> iteration_of(const std::string& name);
// Pure. The iteration in ".iter_0000120.replaced"; empty for any other name.
std::optional<int64_t> replaced_iteration_of(const std::string& name);
// Pure. Whether an unfinished save left this.
bool is_left_over(const std::string& name);

// Blocks the host. What lies in the directory; empty when there is no such directory. Throws Error(kCheckpoint).
std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory);

// Blocks the host. A job that was killed while it replaced a set left the older one aside: moves it back to its name,
// unless the new one has taken it.
void restore_replaced(Storage& storage, const Log& log, const CheckpointLayout& layout);

}  // namespace ashlar
