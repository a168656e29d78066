// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view name() const = 0;
  virtual int64_t vocab_size() const = 0;  // ids are 0 to vocab_size - 1, the document end included
  virtual int32_t eod() const = 0;         // the id that ends a document; encode never makes it
  // Pure. Appends the ids of the text. Throws Error(kData) when the text cannot be encoded.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  // Pure. The document end becomes nothing. Throws Error(kData) for ids beyond the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
};

// Ids 0 to 255 are the bytes, 256 is the document end: every text, valid UTF-8 or not, survives the round trip.
class ByteTokenizer : public Tokenizer {
 public:
  std::string_view name() const override { return "ByteTokenizer"; }
  int64_t vocab_size() const override { return 257; }
  int32_t eod() const override { return 256; }
  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::string decode(std::span<const int32_t> ids) const override;
};

// For text that is numbers already, separated by blanks, each below `num_ids`; the document end is num_ids itself, so
// the vocabulary is one larger (Megatron's NullTokenizer).
class NullTokenizer : public Tokenizer {
 public:
  explicit NullTokenizer(int64_t num_ids);
  std::string_view name() const override { return "NullTokenizer"; }
  int64_t vocab_size() const override { return num_ids_ + 1; }
  int32_t eod() const override { return static_cast<int32_t>(num_ids_); }
  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::string decode(std::span<const int32_t> ids) const override;

 private:
  int64_t num_ids_;
};

// A tokenizer by the name of --tokenizer-type. `vocab_size` is --vocab-size (0: not given), which NullTokenizer needs.
// Throws Error(kUsage) listing the names.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, int64_t vocab_size = 0);

}  // namespace ashlar
