// Megatron's .idx (little endian, unaligned sections) and .bin (bare tokens):
//   offset 0: 9 bytes "MMIDIDX\0\0" | 9: u64 version 1 | 17: u8 type | 18: u64 S sequences | 26: u64 D documents + 1
//   34: S i32 lengths | S i64 byte offsets | D i64 document entries | multimodal only: S i8 modes
#include <algorithm>
#include <array>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/data/fingerprint.h"
#include "runtime/data/mapped_file.h"
#include "runtime/data/token_file.h"

namespace ashlar {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::string_view kOldMagic("TNTIDX\0\0", 8);
constexpr size_t kHeaderBytes = 34;

[[noreturn]] void refuse(const std::string& path, std::string_view field, const std::string& expected,
                         const std::string& found) {
  throw Error(ErrorCode::kData, fmt::format("{}: {}: expected {}, found {}", path, field, expected, found));
}

std::string quoted(std::string_view bytes) {
  std::string text;
  for (const char letter : bytes) {
    const auto byte = static_cast<unsigned char>(letter);
    text += byte >= 0x20 && byte < 0x7f ? std::string(1, letter) : fmt::format("\\x{:02x}", byte);
  }
  return text;
}

std::string count_text(uint64_t count) {
  const uint64_t swapped = __builtin_bswap64(count);
  return count > (uint64_t{1} << 48) && swapped < (uint64_t{1} << 48)
             ? fmt::format("{} ({} with its bytes swapped: a big-endian file?)", count, swapped)
             : fmt::format("{}", count);
}

class IndexedFile : public TokenFile {
 public:
  explicit IndexedFile(const std::string& prefix) : prefix_(prefix), index_(prefix + ".idx"), tokens_(prefix + ".bin") {
    check_header();
    check_sections();
    check_sequences();
    check_documents();
    check_modes();
  }

  TokenType token_type() const override { return type_; }
  int64_t num_tokens() const override { return num_tokens_; }
  int64_t num_sequences() const override { return num_sequences_; }
  int64_t sequence_begin(int64_t sequence) const override {
    DCHECK(sequence >= 0 && sequence <= num_sequences_, "{}: sequence {}", prefix_, sequence);
    return sequence == num_sequences_ ? num_tokens_ : pointer(sequence) / static_cast<int64_t>(token_bytes(type_));
  }
  int64_t num_documents() const override { return num_documents_; }
  int64_t document_begin(int64_t document) const override {
    DCHECK(document >= 0 && document <= num_documents_, "{}: document {}", prefix_, document);
    return index_.at<int64_t>(documents_at_ + static_cast<size_t>(document) * 8);
  }

  void read(int64_t first, std::span<int32_t> tokens, int64_t vocab_size) const override {
    DCHECK(first >= 0 && first + std::ssize(tokens) <= num_tokens_, "{}: tokens [{}, +{}) of {}", prefix_, first,
           tokens.size(), num_tokens_);
    const std::byte* from = tokens_.data() + static_cast<size_t>(first) * token_bytes(type_);
    if (const auto bad = decode_tokens(from, type_, vocab_size, tokens)) {
      throw Error(
          ErrorCode::kData,
          fmt::format("{}: token {} of {} has id {}, but the vocabulary has {} ids (0 to {}); was the file made "
                      "with another tokenizer? (--tokenizer-type, --vocab-size)",
                      tokens_.path(), first + static_cast<int64_t>(bad->index), num_tokens_, bad->id, vocab_size,
                      vocab_size - 1));
    }
  }

  uint64_t fingerprint() const override {
    const uint64_t hash = hash_bytes(index_.data(), index_.size());
    return hash_places(hash, {tokens_.data(), tokens_.size()});
  }
  const std::string& path() const override { return prefix_; }
  std::string description() const override {
    return fmt::format("{} documents, {} tokens {}, Megatron index", num_documents_, num_tokens_,
                       token_type_name(type_));
  }

 private:
  const std::string& index_path() const { return index_.path(); }
  int32_t length(int64_t sequence) const {
    return index_.at<int32_t>(kHeaderBytes + static_cast<size_t>(sequence) * 4);
  }
  int64_t pointer(int64_t sequence) const {
    return index_.at<int64_t>(pointers_at_ + static_cast<size_t>(sequence) * 8);
  }

  void check_header() {
    const std::string_view head(reinterpret_cast<const char*>(index_.data()), std::min(index_.size(), kMagic.size()));
    if (head.starts_with(kOldMagic)) {
      refuse(index_path(), "magic", quoted(kMagic),
             quoted(kOldMagic) + " (an old fairseq index: preprocess the text again)");
    }
    if (head != kMagic) {
      refuse(index_path(), "magic", quoted(kMagic), head.empty() ? "an empty file" : quoted(head));
    }
    if (index_.size() < kHeaderBytes) {
      refuse(index_path(), "file size", fmt::format("at least the {} bytes of the header", kHeaderBytes),
             fmt::format("{} bytes: the file is cut", index_.size()));
    }
    if (const auto version = index_.at<uint64_t>(9); version != 1) {
      refuse(index_path(), "version", "1", count_text(version));
    }
    const auto code = index_.at<uint8_t>(17);
    constexpr std::array kKnown = {TokenType::kU8,  TokenType::kI8,  TokenType::kI16,
                                   TokenType::kI32, TokenType::kI64, TokenType::kU16};
    if (std::find(kKnown.begin(), kKnown.end(), static_cast<TokenType>(code)) == kKnown.end()) {
      refuse(index_path(), "type code", "an integer type (1 to 5, or 8)",
             fmt::format("{}{}", code, code == 6 || code == 7 ? " (floating point: not tokens)" : ""));
    }
    type_ = static_cast<TokenType>(code);
  }

  void check_sections() {
    const auto sequences = index_.at<uint64_t>(18);
    const auto entries = index_.at<uint64_t>(26);
    const uint64_t body = index_.size() - kHeaderBytes;
    if (sequences > body / 12) {
      refuse(index_path(), "sequence count", fmt::format("at most {} in a file of {} bytes", body / 12, index_.size()),
             count_text(sequences));
    }
    if (entries > body / 8 || entries < 1) {
      refuse(index_path(), "document count",
             fmt::format("1 to {} entries in a file of {} bytes", body / 8, index_.size()), count_text(entries));
    }
    const uint64_t needed = kHeaderBytes + 12 * sequences + 8 * entries;
    has_modes_ = sequences > 0 && index_.size() == needed + sequences;
    if (index_.size() != needed && !has_modes_) {
      refuse(index_path(), "file size",
             fmt::format("{} bytes for {} sequences and {} document entries", needed, sequences, entries),
             fmt::format("{} bytes", index_.size()));
    }
    num_sequences_ = static_cast<int64_t>(sequences);
    num_documents_ = static_cast<int64_t>(entries) - 1;
    pointers_at_ = kHeaderBytes + 4 * sequences;
    documents_at_ = pointers_at_ + 8 * sequences;
  }

  void check_sequences() {
    const auto width = static_cast<int64_t>(token_bytes(type_));
    for (int64_t sequence = 0; sequence < num_sequences_; ++sequence) {
      const int32_t tokens = length(sequence);
      if (tokens < 0) {
        refuse(index_path(), fmt::format("length of sequence {}", sequence), "0 or more", fmt::format("{}", tokens));
      }
      if (pointer(sequence) != num_tokens_ * width) {
        refuse(index_path(), fmt::format("offset of sequence {}", sequence),
               fmt::format("{} (the {} tokens before it, {} bytes each)", num_tokens_ * width, num_tokens_, width),
               fmt::format("{}", pointer(sequence)));
      }
      num_tokens_ += tokens;
    }
    const uint64_t needed = static_cast<uint64_t>(num_tokens_) * static_cast<uint64_t>(width);
    if (tokens_.size() != needed) {
      refuse(tokens_.path(), "file size",
             fmt::format("{} bytes for the {} tokens ({}) that the index lists", needed, num_tokens_,
                         token_type_name(type_)),
             fmt::format("{} bytes", tokens_.size()));
    }
  }

  void check_documents() {
    int64_t before = 0;
    for (int64_t entry = 0; entry <= num_documents_; ++entry) {
      const int64_t begin = document_begin(entry);
      const std::string field = entry == num_documents_ ? "last document entry" : "document entry";
      if (entry == 0 && begin != 0) {
        refuse(index_path(), "first document entry", "0", fmt::format("{}", begin));
      }
      if (begin < before || begin > num_sequences_) {
        refuse(index_path(), fmt::format("{} {}", field, entry),
               fmt::format("{} to {} (the sequence count)", before, num_sequences_), fmt::format("{}", begin));
      }
      before = begin;
    }
    if (before != num_sequences_) {
      refuse(index_path(), fmt::format("last document entry {}", num_documents_),
             fmt::format("{} (the sequence count)", num_sequences_), fmt::format("{}", before));
    }
  }

  // A multimodal index marks each sequence with a mode, 0 for text. Text is all we read.
  void check_modes() {
    const size_t modes_at = documents_at_ + 8 * (static_cast<size_t>(num_documents_) + 1);
    for (int64_t sequence = 0; has_modes_ && sequence < num_sequences_; ++sequence) {
      if (const auto mode = index_.at<int8_t>(modes_at + static_cast<size_t>(sequence)); mode != 0) {
        refuse(index_path(), fmt::format("mode of sequence {}", sequence), "0 (text)",
               fmt::format("{} (a multimodal data set)", mode));
      }
    }
  }

  std::string prefix_;
  MappedFile index_;
  MappedFile tokens_;
  TokenType type_ = TokenType::kU16;
  int64_t num_tokens_ = 0;
  int64_t num_sequences_ = 0;
  int64_t num_documents_ = 0;
  size_t pointers_at_ = 0;
  size_t documents_at_ = 0;
  bool has_modes_ = false;
};

}  // namespace

std::unique_ptr<TokenFile> open_indexed_file(const std::string& prefix) {
  return std::make_unique<IndexedFile>(prefix);
}

}  // namespace ashlar
