#include "examples/preprocess_data/preprocess.h"

#include <algorithm>
#include <memory>

#include "examples/preprocess_data/progress.h"
#include "runtime/base/error.h"
#include "runtime/data/token_file_writer.h"
#include "runtime/data/tokenizer.h"

namespace ashlar::prepare {
namespace {

bool is_jsonl(const PreprocessOptions& options) {
  if (options.input_format == "auto") {
    return options.input.ends_with(".jsonl") || options.input.ends_with(".json");
  }
  return options.input_format == "jsonl";
}

std::vector<std::string> output_keys(const PreprocessOptions& options) {
  if (!is_jsonl(options)) {
    return {"text"};
  }
  REQUIRE(options.document_edges == DocumentEdges::kWholeFile, ErrorCode::kUsage,
          "--split-documents is for plain text; a JSONL file has one document a line and key");
  for (const std::string& key : options.json_keys) {
    REQUIRE(std::count(options.json_keys.begin(), options.json_keys.end(), key) == 1, ErrorCode::kUsage,
            "--json-keys: \"{}\" is given twice", key);
  }
  return options.json_keys;
}

// The text of documents on its way into one pair of files.
class Output {
 public:
  Output(const PreprocessOptions& options, const std::string& key, const Tokenizer& tokenizer)
      : writer_(fmt::format("{}_{}_document", options.output_prefix, key), tokenizer.vocab_size(), options.overwrite),
        tokenizer_(tokenizer),
        append_eod_(options.append_eod) {}

  void add(std::string_view text) {
    ids_.clear();
    tokenizer_.encode(text, ids_);
    writer_.append(ids_);
    has_tokens_ = has_tokens_ || !ids_.empty();
  }

  void end() {  // an empty document gets no document end either, as in Megatron
    if (!has_tokens_) {
      ++num_empty_;
      return;
    }
    if (append_eod_) {
      const int32_t eod = tokenizer_.eod();
      writer_.append({&eod, 1});
    }
    writer_.end_document();
    has_tokens_ = false;
  }

  TokenFileWriter& writer() { return writer_; }
  int64_t num_empty() const { return num_empty_; }

 private:
  TokenFileWriter writer_;
  const Tokenizer& tokenizer_;
  bool append_eod_;
  bool has_tokens_ = false;
  int64_t num_empty_ = 0;
  std::vector<int32_t> ids_;
};

}  // namespace

std::string preprocess(const PreprocessOptions& options) {
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer_type, options.vocab_size);
  const std::vector<std::string> keys = output_keys(options);
  InputFile input(options.input);
  std::vector<std::unique_ptr<Output>> outputs;
  for (const std::string& key : keys) {
    outputs.push_back(std::make_unique<Output>(options, key, *tokenizer));
  }

  Progress progress;
  DocumentSink sink;
  sink.text = [&](size_t output, std::string_view text) {
    outputs[output]->add(text);
    progress.update(input.bytes_read(), input.total_bytes());
  };
  sink.end = [&](size_t output) { outputs[output]->end(); };
  if (is_jsonl(options)) {
    read_jsonl(input, keys, sink);
  } else {
    read_text(input, options.document_edges, sink);
  }
  progress.clear();
  for (const auto& output : outputs) {
    REQUIRE(output->writer().num_documents() > 0, ErrorCode::kData,
            "{}: found no text for {}_document: nothing written", input.name(), output->writer().prefix());
  }

  std::string summary;
  for (const auto& output : outputs) {
    TokenFileWriter& writer = output->writer();
    writer.finish();
    summary += fmt::format("{} documents, {} tokens ({}, vocabulary {})", writer.num_documents(), writer.num_tokens(),
                           tokenizer->name(), tokenizer->vocab_size());
    if (is_jsonl(options) && output->num_empty() > 0) {  // in plain text, blank lines in a row are no documents
      summary += fmt::format(", {} empty documents left out", output->num_empty());
    }
    summary += fmt::format("\ntrain with: --data-path {} --tokenizer-type {}\n", writer.prefix(), tokenizer->name());
  }
  const double seconds = std::max(progress.elapsed_seconds(), 1e-9);
  return fmt::format("read {} bytes in {:.1f} s ({:.1f} MB/s)\n", input.bytes_read(), seconds,
                     static_cast<double>(input.bytes_read()) / 1e6 / seconds) +
         summary;
}

}  // namespace ashlar::prepare
