// Writes Megatron's <prefix>.idx and <prefix>.bin: aside, flushed to the disk, then renamed, so that a reader meets the
// whole pair or no index at all.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/token_type.h"

namespace ashlar {

// A file written through a buffer; every failure (a full disk, a limit) is an Error(kData) with the system's reason.
// Locked while open, so that two writers of one file cannot mix their bytes.
class TokenOutputFile {
 public:
  explicit TokenOutputFile(std::string path);
  ~TokenOutputFile();  // removes the file unless commit_as was called
  TokenOutputFile(const TokenOutputFile&) = delete;
  TokenOutputFile& operator=(const TokenOutputFile&) = delete;

  const std::string& path() const { return path_; }
  void write(const void* bytes, size_t count);
  // Blocks the host until the bytes are on the disk.
  void sync();
  void commit_as(const std::string& final_path);

 private:
  void flush();
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  int file_ = -1;
  std::vector<std::byte> buffer_;
  bool committed_ = false;
};

class TokenFileWriter {
 public:
  // Opens the temporary files. Throws Error(kUsage) when the output exists and `overwrite` is false, or when its folder
  // does not exist. Tokens are uint16 for vocabularies below 65,500 ids, else int32.
  // `max_sequence_tokens` is what an index can hold (lengths are int32); tests give less.
  TokenFileWriter(std::string prefix, int64_t vocab_size, bool overwrite,
                  int64_t max_sequence_tokens = std::numeric_limits<int32_t>::max());

  // Adds to the current document. A document longer than a sequence can be becomes several sequences.
  void append(std::span<const int32_t> tokens);
  // Ends the current document; one without tokens leaves no trace. Returns whether it had any.
  bool end_document();
  // Blocks the host. Writes the index, flushes both files and moves them to their names. Without this call nothing is
  // left behind.
  void finish();

  int64_t num_documents() const { return static_cast<int64_t>(document_entries_.size()) - 1; }
  int64_t num_tokens() const { return num_tokens_; }
  const std::string& prefix() const { return prefix_; }

 private:
  void end_sequence();

  std::string prefix_;
  TokenType type_;
  int64_t vocab_size_;
  int64_t max_sequence_tokens_;
  TokenOutputFile tokens_;
  TokenOutputFile index_;
  std::vector<int32_t> lengths_;           // 12 bytes of memory a document, with the entry below
  std::vector<int64_t> document_entries_;  // first sequence of every document, then their number
  std::vector<std::byte> encoded_;
  int64_t current_length_ = 0;  // of the open sequence
  int64_t num_tokens_ = 0;
};

}  // namespace ashlar
