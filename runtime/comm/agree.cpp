#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/ranges.h>

#include "runtime/comm/launch.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ashlar {
namespace {

// "rank 3", "ranks 1, 3", or "" when it is all of them.
std::string who(const std::vector<int>& ranks, int world_size) {
  if (static_cast<int>(ranks.size()) == world_size) {
    return "";
  }
  return fmt::format("rank{} {}: ", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

std::vector<std::string> all_gather_text(Communicator& world, const std::string& text) {
  CpuDevice device;
  const std::unique_ptr<Stream> stream = device.create_stream();
  const size_t size = static_cast<size_t>(world.size());
  int64_t length = static_cast<int64_t>(text.size());
  std::vector<int64_t> lengths(size);
  world.all_gather(view_of(lengths.data(), {world.size()}), view_of(&length, {1}), *stream).wait_host();
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<uint8_t> mine(static_cast<size_t>(longest));
  std::vector<uint8_t> all(static_cast<size_t>(longest) * size);
  std::copy(text.begin(), text.end(), mine.begin());
  world.all_gather(view_of(all.data(), {world.size() * longest}), view_of(mine.data(), {longest}), *stream).wait_host();
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < size; ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank) * longest;
    texts.emplace_back(begin, begin + lengths[rank]);
  }
  return texts;
}

void agree(Communicator& world, const std::function<void()>& check) {
  constexpr char kOk = 'A' - 1;  // then one letter for each code
  std::string mine(1, kOk);
  try {
    check();
  } catch (const Error& error) {
    mine = fmt::format("{}{}", static_cast<char>('A' + static_cast<int>(error.code())), error.what());
  } catch (const std::exception& error) {
    mine = fmt::format("{}{}", static_cast<char>('A' + static_cast<int>(ErrorCode::kInternal)), error.what());
  }
  const std::vector<std::string> all = all_gather_text(world, mine);

  std::vector<std::pair<std::string, std::vector<int>>> distinct;  // text, ranks
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string& text = all[static_cast<size_t>(rank)];
    if (text[0] == kOk) {
      continue;
    }
    const auto known = std::find_if(distinct.begin(), distinct.end(), [&](const auto& d) { return d.first == text; });
    if (known == distinct.end()) {
      distinct.push_back({text, {rank}});
    } else {
      known->second.push_back(rank);
    }
  }
  if (distinct.empty()) {
    return;
  }
  std::string message;
  constexpr size_t kShown = 4;
  for (size_t index = 0; index < std::min(kShown, distinct.size()); ++index) {
    const auto& [text, ranks] = distinct[index];
    message += fmt::format("{}{}{}", index == 0 ? "" : "\n", who(ranks, world.size()), text.substr(1));
  }
  if (distinct.size() > kShown) {
    message += fmt::format("\n... and {} more messages like these", distinct.size() - kShown);
  }
  throw AgreedError(static_cast<ErrorCode>(distinct.front().first[0] - 'A'), message);
}

}  // namespace ashlar
