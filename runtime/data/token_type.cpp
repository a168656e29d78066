#include "runtime/data/token_type.h"

#include <cstring>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

template <typename T>
std::optional<BadToken> decode_as(const std::byte* from, int64_t vocab_size, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T stored;
    std::memcpy(&stored, from + i * sizeof(T), sizeof(T));
    const auto id = static_cast<int64_t>(stored);
    if (id < 0 || id >= vocab_size) {
      return BadToken{i, id};
    }
    out[i] = static_cast<int32_t>(id);
  }
  return std::nullopt;
}

}  // namespace

size_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
    case TokenType::kU32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  return 0;
}

std::string_view token_type_name(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "uint8";
    case TokenType::kI8:
      return "int8";
    case TokenType::kI16:
      return "int16";
    case TokenType::kI32:
      return "int32";
    case TokenType::kI64:
      return "int64";
    case TokenType::kU16:
      return "uint16";
    case TokenType::kU32:
      return "uint32";
  }
  return "?";
}

TokenType smallest_token_type(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

std::optional<BadToken> decode_tokens(const std::byte* from, TokenType type, int64_t vocab_size,
                                      std::span<int32_t> out) {
  DCHECK(vocab_size >= 0 && vocab_size <= int64_t{1} << 31, "vocabulary {}", vocab_size);
  switch (type) {
    case TokenType::kU8:
      return decode_as<uint8_t>(from, vocab_size, out);
    case TokenType::kI8:
      return decode_as<int8_t>(from, vocab_size, out);
    case TokenType::kI16:
      return decode_as<int16_t>(from, vocab_size, out);
    case TokenType::kI32:
      return decode_as<int32_t>(from, vocab_size, out);
    case TokenType::kI64:
      return decode_as<int64_t>(from, vocab_size, out);
    case TokenType::kU16:
      return decode_as<uint16_t>(from, vocab_size, out);
    case TokenType::kU32:
      return decode_as<uint32_t>(from, vocab_size, out);
  }
  return std::nullopt;
}

}  // namespace ashlar
