#include "runtime/data/tokenizer.h"

#include <algorithm>
#include <charconv>

#include "runtime/base/error.h"

namespace ashlar {

void ByteTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  ids.resize(before + text.size());
  std::transform(text.begin(), text.end(), ids.begin() + static_cast<std::ptrdiff_t>(before),
                 [](char letter) { return static_cast<unsigned char>(letter); });
}

std::string ByteTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    REQUIRE(id >= 0 && id <= eod(), ErrorCode::kData, "ByteTokenizer: expected ids 0 to {}, found {}", eod(), id);
    if (id != eod()) {
      text.push_back(static_cast<char>(id));
    }
  }
  return text;
}

NullTokenizer::NullTokenizer(int64_t num_ids) : num_ids_(num_ids) {
  REQUIRE(num_ids >= 1 && num_ids < (int64_t{1} << 31) - 1, ErrorCode::kUsage,
          "--tokenizer-type NullTokenizer needs --vocab-size N, the number of ids, from 1 to 2147483646; found {}",
          num_ids);
}

void NullTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  constexpr std::string_view kBlanks = " \t\r\n";
  for (size_t begin = text.find_first_not_of(kBlanks); begin != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kBlanks, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    int64_t id = -1;
    const auto [stop, status] = std::from_chars(word.data(), word.data() + word.size(), id);
    REQUIRE(status == std::errc() && stop == word.data() + word.size() && id >= 0 && id < num_ids_, ErrorCode::kData,
            "NullTokenizer: expected numbers from 0 to {} (--vocab-size {}) separated by blanks, found \"{}\"",
            num_ids_ - 1, num_ids_, word.substr(0, 40));
    ids.push_back(static_cast<int32_t>(id));
    begin = text.find_first_not_of(kBlanks, end);
  }
}

std::string NullTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    REQUIRE(id >= 0 && id <= eod(), ErrorCode::kData, "NullTokenizer: expected ids 0 to {}, found {}", eod(), id);
    if (id != eod()) {
      text += fmt::format("{}{}", text.empty() ? "" : " ", id);
    }
  }
  return text;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, int64_t vocab_size) {
  if (type == "ByteTokenizer") {
    REQUIRE(vocab_size == 0 || vocab_size == 257, ErrorCode::kUsage,
            "--vocab-size {}: ByteTokenizer has 257 ids (256 bytes and the document end); leave the flag out",
            vocab_size);
    return std::make_unique<ByteTokenizer>();
  }
  if (type == "NullTokenizer") {
    return std::make_unique<NullTokenizer>(vocab_size);
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("--tokenizer-type {}: expected ByteTokenizer or NullTokenizer{}", type,
                          type.ends_with("Tokenizer") ? " (Megatron's others are not supported yet)" : ""));
}

}  // namespace ashlar
