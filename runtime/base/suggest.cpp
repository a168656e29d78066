#include "runtime/base/suggest.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace ashlar {

int64_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the usual table: row i holds the distances of a's first i characters to every prefix of b.
  std::vector<int64_t> two_up(b.size() + 1), up(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = static_cast<int64_t>(j);
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(two_up, up);
    std::swap(up, row);
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t replace = up[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replace, up[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two_up[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::optional<std::string> nearest_name(std::string_view typed, std::span<const std::string> known) {
  std::string wanted(typed);
  for (char& c : wanted) {
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (wanted.empty()) {
    return std::nullopt;
  }
  const std::string* longer = nullptr;
  const std::string* nearest = nullptr;
  int64_t nearest_distance = 0;
  for (const std::string& name : known) {
    if (name == wanted) {
      return name;
    }
    if (name.starts_with(wanted) && (!longer || name.size() < longer->size())) {
      longer = &name;
    }
    const int64_t distance = edit_distance(wanted, name);
    if (!nearest || distance < nearest_distance) {
      nearest = &name;
      nearest_distance = distance;
    }
  }
  const auto limit = std::max<int64_t>(1, static_cast<int64_t>(wanted.size()) / 3);
  // Three letters and fewer begin too many names to mean one of them.
  if (longer && wanted.size() > 3) {
    return *longer;
  }
  return nearest && nearest_distance <= limit ? std::optional(*nearest) : std::nullopt;
}

}  // namespace ashlar
