#include <algorithm>
#include <charconv>

#include "runtime/base/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/manifest.h"

namespace ashlar {
namespace fs = std::filesystem;

namespace {

// Empty when the set is whole, otherwise what is wrong with it.
std::string damage_of(const CheckpointLayout& layout, int64_t iteration) {
  try {
    read_manifest(layout.set(iteration), iteration);
    return "";
  } catch (const Error& problem) {
    return problem.what();
  }
}

// The iteration in the mark; empty, with a line in the log, when there is no usable mark.
std::optional<int64_t> read_mark(const Log& log, const CheckpointLayout& layout) {
  if (!path_exists(layout.mark())) {
    log.warning("{} is missing", layout.mark().string());
    return std::nullopt;
  }
  std::string text = read_file(layout.mark());
  text.erase(text.find_last_not_of(" \r\n") + 1);
  int64_t iteration = -1;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), iteration);
  if (code != std::errc() || end != text.data() + text.size() || iteration < 0) {
    log.warning("{} is damaged: expected a number, found \"{}\"", layout.mark().string(), text.substr(0, 40));
    return std::nullopt;
  }
  return iteration;
}

std::optional<int64_t> find_on_this_rank(const Log& log, const CheckpointLayout& layout) {
  Storage storage;
  restore_replaced(storage, log, layout);
  std::vector<int64_t> iterations;
  for (const fs::path& path : list_directory(layout.directory())) {
    if (const auto iteration = iteration_of(path.filename().string())) {
      iterations.push_back(*iteration);
    }
  }
  if (iterations.empty() && !path_exists(layout.mark())) {
    return std::nullopt;
  }
  std::sort(iterations.rbegin(), iterations.rend());

  const std::optional<int64_t> marked = read_mark(log, layout);
  if (marked) {
    const std::string damage = damage_of(layout, *marked);
    if (damage.empty()) {
      if (iterations.front() > *marked) {
        log.info("going on from iteration {}, which {} names; {} is newer and not used", *marked,
                 layout.mark().string(), layout.set(iterations.front()).string());
      }
      return marked;
    }
    log.warning("iteration {}, which {} names, is damaged and skipped: {}", *marked, layout.mark().string(), damage);
  }
  for (const int64_t iteration : iterations) {
    if (iteration == marked) {
      continue;
    }
    const std::string damage = damage_of(layout, iteration);
    if (damage.empty()) {
      log.info("iteration {} is the newest whole checkpoint in {}", iteration, layout.directory().string());
      return iteration;
    }
    log.warning("iteration {} is damaged and skipped: {}", iteration, damage);
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> find_checkpoint(RankContext& rank, const std::string& directory) {
  std::string found;
  agree(rank.world, [&] {
    if (rank.world.rank() == 0) {
      const std::optional<int64_t> iteration = find_on_this_rank(rank.log, CheckpointLayout(directory));
      found = iteration ? std::to_string(*iteration) : "";
    }
  });
  const std::string text = all_gather_text(rank.world, found).front();
  return text.empty() ? std::nullopt : std::optional<int64_t>(std::stoll(text));
}

}  // namespace ashlar
