// Text in, a Megatron .idx/.bin pair out for every key.
#pragma once

#include <string>
#include <vector>

#include "examples/preprocess_data/text_source.h"

namespace ashlar::prepare {

struct PreprocessOptions {
  std::string input;
  std::string input_format = "auto";  // auto, text, jsonl
  std::vector<std::string> json_keys = {"text"};
  std::string output_prefix;
  std::string tokenizer_type = "ByteTokenizer";
  int64_t vocab_size = 0;
  bool append_eod = false;
  DocumentEdges document_edges = DocumentEdges::kWholeFile;
  bool overwrite = false;
};

// Blocks the host. Writes <output_prefix>_<key>_document.{bin,idx} (key "text" for plain text). When it throws, each
// pair is as it was before, or new and whole. Returns the summary to print.
std::string preprocess(const PreprocessOptions& options);

}  // namespace ashlar::prepare
