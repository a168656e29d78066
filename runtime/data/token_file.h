// Token files: one long row of token ids, mapped into memory, whatever wrote it. A file is checked as a whole when it
// is opened (sizes, counts, offsets) and refused with file, field, expected and found value; ids are checked when read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/token_type.h"

namespace ashlar {

class TokenFile {
 public:
  virtual ~TokenFile() = default;

  virtual TokenType token_type() const = 0;
  virtual int64_t num_tokens() const = 0;
  // Sequences follow each other without gaps. Megatron's preprocessing makes one per document; a token stream without
  // an index is one sequence. sequence_begin(num_sequences()) is num_tokens().
  virtual int64_t num_sequences() const = 0;
  virtual int64_t sequence_begin(int64_t sequence) const = 0;
  // Documents are runs of sequences; document_begin gives the first sequence, document_begin(num_documents()) their
  // number.
  virtual int64_t num_documents() const = 0;
  virtual int64_t document_begin(int64_t document) const = 0;

  // Pure. Reads tokens [first, first + tokens.size()). Throws Error(kData) naming file, position, id and vocabulary
  // size when an id is negative or not below vocab_size (at most 2^31).
  virtual void read(int64_t first, std::span<int32_t> tokens, int64_t vocab_size) const = 0;

  // Pure. A hash of what the file holds (counts, type, index or header, tokens at 64 places), not of where it lies:
  // ranks that see the same data get the same number.
  virtual uint64_t fingerprint() const = 0;
  virtual const std::string& path() const = 0;  // as the user gave it
  virtual std::string description() const = 0;  // "3 documents, 1000 tokens uint16, Megatron index"
};

// What a --data-path entry names: the prefix of a Megatron pair (also with .idx or .bin at its end), one llm.c shard, a
// glob pattern of shards, or a comma separated list of shards. Throws Error(kData).
std::unique_ptr<TokenFile> open_token_file(const std::string& path);

// Megatron's <prefix>.idx and <prefix>.bin. Opening reads the whole index once (12 bytes a sequence) to check it.
std::unique_ptr<TokenFile> open_indexed_file(const std::string& prefix);

// llm.c .bin shards (magic 20240520 version 1: uint16; magic 20240801 version 7: uint32), concatenated in this order.
std::unique_ptr<TokenFile> open_token_shards(const std::string& name, const std::vector<std::string>& paths);

// Blocks the host: reads the whole file. Throws Error(kData) at the first id that is not below vocab_size.
void check_vocabulary(const TokenFile& file, int64_t vocab_size);

// Blocks the host: reads the whole file. The largest id, -1 for a file without tokens.
int64_t max_token_id(const TokenFile& file);

}  // namespace ashlar
