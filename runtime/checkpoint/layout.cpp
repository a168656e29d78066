#include "runtime/checkpoint/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include "runtime/base/error.h"

namespace ashlar {
namespace fs = std::filesystem;

namespace {

std::string set_name(int64_t iteration) {
  return fmt::format("iter_{:07d}", iteration);
}

}  // namespace

fs::path CheckpointLayout::set(int64_t iteration) const {
  return directory_ / set_name(iteration);
}
fs::path CheckpointLayout::new_set(int64_t iteration) const {
  return directory_ / fmt::format(".{}.tmp", set_name(iteration));
}
fs::path CheckpointLayout::replaced_set(int64_t iteration) const {
  return directory_ / fmt::format(".{}.replaced", set_name(iteration));
}
fs::path CheckpointLayout::mark() const {
  return directory_ / "latest_checkpointed_iteration.txt";
}
fs::path CheckpointLayout::new_mark() const {
  return directory_ / ".latest_checkpointed_iteration.txt.tmp";
}
std::string CheckpointLayout::rank_file(int rank) {
  return fmt::format("rank_{:05d}.safetensors", rank);
}

std::optional<int64_t> iteration_of(const std::string& name) {
  constexpr std::string_view kStart = "iter_";
  int64_t iteration = 0;
  if (name.compare(0, kStart.size(), kStart) != 0) {
    return std::nullopt;
  }
  const char* last = name.data() + name.size();
  const auto [end, code] = std::from_chars(name.data() + kStart.size(), last, iteration);
  return code == std::errc() && end == last && set_name(iteration) == name ? std::optional(iteration) : std::nullopt;
}

std::optional<int64_t> replaced_iteration_of(const std::string& name) {
  constexpr std::string_view kEnd = ".replaced";
  if (name.size() < kEnd.size() + 1 || name[0] != '.' || !name.ends_with(kEnd)) {
    return std::nullopt;
  }
  return iteration_of(name.substr(1, name.size() - 1 - kEnd.size()));
}

bool is_left_over(const std::string& name) {
  return (name.starts_with(".iter_") && (name.ends_with(".tmp") || name.ends_with(".replaced"))) ||
         name == ".latest_checkpointed_iteration.txt.tmp" || name == ".probe.tmp";
}

std::vector<fs::path> list_directory(const fs::path& directory) {
  std::error_code code;
  std::vector<fs::path> paths;
  if (!fs::exists(directory, code) && !code) {
    return paths;
  }
  fs::directory_iterator entry(directory, code);
  while (!code && entry != fs::directory_iterator()) {
    paths.push_back(entry->path());
    entry.increment(code);
  }
  REQUIRE(!code, ErrorCode::kCheckpoint, "cannot read directory {}: {}", directory.string(), code.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

void restore_replaced(Storage& storage, const Log& log, const CheckpointLayout& layout) {
  for (const fs::path& path : list_directory(layout.directory())) {
    const std::optional<int64_t> iteration = replaced_iteration_of(path.filename().string());
    if (!iteration || path_exists(layout.set(*iteration))) {
      continue;
    }
    if (storage.try_rename(path, layout.set(*iteration))) {
      log.info("moved {} back to {}: the save that was replacing it did not finish", path.string(),
               layout.set(*iteration).string());
    } else {
      log.warning("cannot move {} back to {}", path.string(), layout.set(*iteration).string());
    }
  }
}

}  // namespace ashlar
