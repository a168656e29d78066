// "Did you mean ...": the known name nearest to a misspelt one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ashlar {

// Pure. Fewest insertions, deletions, replacements and swaps of neighbours that turn a into b (each character is moved
// at most once: optimal string alignment).
int64_t edit_distance(std::string_view a, std::string_view b);

// Pure. The known name that was most likely meant: case and '_' against '-' do not count; a name that starts with what
// was typed comes first (the shortest such); then the smallest distance, if it is at most a third of the length.
std::optional<std::string> nearest_name(std::string_view typed, std::span<const std::string> known);

}  // namespace ashlar
