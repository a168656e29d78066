// How token ids lie in a file, and their way into int32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace ashlar {

// Values are the type codes of a Megatron index; 6 and 7 are its floating point types, which hold no tokens.
enum class TokenType : uint8_t {
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kU16 = 8,
  kU32 = 255,  // llm.c shards only: no index has a code for it
};

size_t token_bytes(TokenType type);
std::string_view token_type_name(TokenType type);  // "uint16", ...

// Pure. The type a new file gets, Megatron's rule: uint16 below 65,500 ids, else int32.
TokenType smallest_token_type(int64_t vocab_size);

struct BadToken {
  size_t index;  // position in the span
  int64_t id;
};

// Pure. Decodes out.size() ids; returns the first that is negative or not below vocab_size (at most 2^31).
std::optional<BadToken> decode_tokens(const std::byte* from, TokenType type, int64_t vocab_size,
                                      std::span<int32_t> out);

}  // namespace ashlar
