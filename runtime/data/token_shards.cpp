// llm.c token shards: int32[256] header ([0] magic, [1] version, [2] number of tokens), then the tokens.
#include <algorithm>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/data/fingerprint.h"
#include "runtime/data/mapped_file.h"
#include "runtime/data/token_file.h"

namespace ashlar {
namespace {

constexpr size_t kHeaderBytes = 1024;

struct Shard {
  MappedFile file;
  TokenType type;
  int64_t begin;  // of this shard's tokens in the whole row
  int64_t count;
};

std::string what_else(const MappedFile& file, int32_t magic) {
  if (file.size() >= 8 && std::memcmp(file.data(), "BIN.TOK\n", 8) == 0) {
    return " (an LLMQ token file: not supported)";
  }
  if (magic == 20240522) {
    return " (an llm.c evaluation file, not training tokens)";
  }
  if (magic == static_cast<int32_t>(__builtin_bswap32(20240520)) ||
      magic == static_cast<int32_t>(__builtin_bswap32(20240801))) {
    return " (bytes swapped: a big-endian file)";
  }
  return " (bare tokens without a header need Megatron's .idx beside them)";
}

Shard open_shard(const std::string& path, int64_t begin) {
  MappedFile file(path);
  REQUIRE(file.size() >= kHeaderBytes, ErrorCode::kData,
          "{}: file size: expected at least the {} bytes of an llm.c header, found {} bytes", path, kHeaderBytes,
          file.size());
  const auto magic = file.at<int32_t>(0);
  const auto version = file.at<int32_t>(4);
  const auto count = file.at<int32_t>(8);
  REQUIRE(magic == 20240520 || magic == 20240801, ErrorCode::kData,
          "{}: magic: expected 20240520 (uint16) or 20240801 (uint32), found {}{}", path, magic,
          what_else(file, magic));
  const int32_t known_version = magic == 20240520 ? 1 : 7;
  const TokenType type = magic == 20240520 ? TokenType::kU16 : TokenType::kU32;
  REQUIRE(version == known_version, ErrorCode::kData, "{}: version: expected {} for magic {}, found {}", path,
          known_version, magic, version);
  REQUIRE(count > 0, ErrorCode::kData, "{}: token count: expected 1 to 2147483647, found {}", path, count);
  const size_t needed = kHeaderBytes + static_cast<size_t>(count) * token_bytes(type);
  REQUIRE(file.size() == needed, ErrorCode::kData, "{}: file size: expected {} bytes for {} tokens {}, found {} bytes",
          path, needed, count, token_type_name(type), file.size());
  return {std::move(file), type, begin, count};
}

class TokenShards : public TokenFile {
 public:
  TokenShards(std::string name, const std::vector<std::string>& paths) : name_(std::move(name)) {
    REQUIRE(!paths.empty(), ErrorCode::kData, "{}: expected one shard or more, found none", name_);
    for (const std::string& path : paths) {
      shards_.push_back(open_shard(path, num_tokens_));
      num_tokens_ += shards_.back().count;
      REQUIRE(shards_.back().type == shards_.front().type, ErrorCode::kData,
              "{}: token type: expected {} like {}, found {}", path, token_type_name(token_type()),
              shards_.front().file.path(), token_type_name(shards_.back().type));
    }
  }

  TokenType token_type() const override { return shards_.front().type; }
  int64_t num_tokens() const override { return num_tokens_; }
  int64_t num_sequences() const override { return 1; }
  int64_t sequence_begin(int64_t sequence) const override { return sequence == 0 ? 0 : num_tokens_; }
  int64_t num_documents() const override { return 1; }
  int64_t document_begin(int64_t document) const override { return document; }

  void read(int64_t first, std::span<int32_t> tokens, int64_t vocab_size) const override {
    DCHECK(first >= 0 && first + std::ssize(tokens) <= num_tokens_, "{}: tokens [{}, +{}) of {}", name_, first,
           tokens.size(), num_tokens_);
    auto shard = std::upper_bound(shards_.begin(), shards_.end(), first,
                                  [](int64_t position, const Shard& candidate) { return position < candidate.begin; });
    for (--shard; !tokens.empty(); ++shard) {
      const int64_t offset = first - shard->begin;
      const int64_t count = std::min<int64_t>(shard->count - offset, std::ssize(tokens));
      read_from(*shard, offset, tokens.first(static_cast<size_t>(count)), vocab_size);
      tokens = tokens.subspan(static_cast<size_t>(count));
      first += count;
    }
  }

  uint64_t fingerprint() const override {
    uint64_t hash = 0;
    for (const Shard& shard : shards_) {
      hash = hash_bytes(shard.file.data(), kHeaderBytes, hash);
      hash = hash_places(hash, {shard.file.data() + kHeaderBytes, shard.file.size() - kHeaderBytes});
    }
    return hash;
  }
  const std::string& path() const override { return name_; }
  std::string description() const override {
    return fmt::format("{} llm.c shard{}, {} tokens {}", shards_.size(), shards_.size() == 1 ? "" : "s", num_tokens_,
                       token_type_name(token_type()));
  }

 private:
  static void read_from(const Shard& shard, int64_t offset, std::span<int32_t> tokens, int64_t vocab_size) {
    const std::byte* from = shard.file.data() + kHeaderBytes + static_cast<size_t>(offset) * token_bytes(shard.type);
    if (const auto bad = decode_tokens(from, shard.type, vocab_size, tokens)) {
      throw Error(
          ErrorCode::kData,
          fmt::format("{}: token {} of {} has id {}, but the vocabulary has {} ids (0 to {}); was the file made "
                      "with another tokenizer? (--tokenizer-type, --vocab-size)",
                      shard.file.path(), offset + static_cast<int64_t>(bad->index), shard.count, bad->id, vocab_size,
                      vocab_size - 1));
    }
  }

  std::string name_;
  std::vector<Shard> shards_;
  int64_t num_tokens_ = 0;
};

}  // namespace

std::unique_ptr<TokenFile> open_token_shards(const std::string& name, const std::vector<std::string>& paths) {
  return std::make_unique<TokenShards>(name, paths);
}

}  // namespace ashlar
