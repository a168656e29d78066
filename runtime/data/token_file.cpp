#include "runtime/data/token_file.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

std::vector<std::string> expand_pattern(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {  // sorted by name, as llm.c reads them
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return paths;
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

template <typename Visit>
void for_each_block(const TokenFile& file, int64_t vocab_size, Visit visit) {
  std::vector<int32_t> block(1 << 16);
  for (int64_t first = 0; first < file.num_tokens(); first += std::ssize(block)) {
    const int64_t count = std::min<int64_t>(std::ssize(block), file.num_tokens() - first);
    const std::span<int32_t> tokens(block.data(), static_cast<size_t>(count));
    file.read(first, tokens, vocab_size);
    visit(tokens);
  }
}

}  // namespace

std::unique_ptr<TokenFile> open_token_file(const std::string& path) {
  std::string prefix = path;
  for (const std::string_view ending : {".idx", ".bin"}) {
    if (path.ends_with(ending)) {
      prefix.resize(path.size() - ending.size());
    }
  }
  if (is_file(prefix + ".idx") || path.ends_with(".idx")) {
    return open_indexed_file(prefix);
  }
  if (is_file(path)) {
    return open_token_shards(path, {path});
  }
  REQUIRE(
      !is_file(path + ".bin"), ErrorCode::kData,
      "--data-path {}: found {}.bin but no {}.idx beside it; a Megatron data set is both files (name an llm.c shard "
      "with its .bin)",
      path, path, path);
  if (path.find_first_of("*?[") != std::string::npos) {
    const std::vector<std::string> paths = expand_pattern(path);
    REQUIRE(!paths.empty(), ErrorCode::kData, "--data-path {}: no file matches this pattern", path);
    return open_token_shards(path, paths);
  }
  if (path.find(',') != std::string::npos) {
    return open_token_shards(path, split_at_commas(path));
  }
  throw Error(ErrorCode::kData,
              fmt::format("--data-path {}: expected {}.idx and {}.bin (Megatron), or an llm.c shard, or a pattern of "
                          "shards; found no such file",
                          path, path, path));
}

void check_vocabulary(const TokenFile& file, int64_t vocab_size) {
  for_each_block(file, vocab_size, [](std::span<const int32_t>) {});
}

int64_t max_token_id(const TokenFile& file) {
  int64_t largest = -1;
  for_each_block(file, int64_t{1} << 31, [&](std::span<const int32_t> tokens) {
    largest = std::max<int64_t>(largest, *std::max_element(tokens.begin(), tokens.end()));
  });
  return largest;
}

}  // namespace ashlar
