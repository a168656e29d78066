// preprocess_data: flags are those of Megatron's tools/preprocess_data.py.
#include <CLI/CLI.hpp>
#include <map>

#include "examples/preprocess_data/preprocess.h"
#include "runtime/base/error.h"

namespace {

int run(int argc, char** argv) {
  ashlar::prepare::PreprocessOptions options;
  std::string edges = "whole-file";
  int workers = 1;
  CLI::App app("Turns text or JSONL into token files for training (Megatron's .idx and .bin).", "preprocess_data");
  app.add_option("--input", options.input, "text or JSONL file, - for stdin")->required();
  app.add_option("--output-prefix", options.output_prefix, "output is PREFIX_<key>_document.{bin,idx}")->required();
  app.add_option("--tokenizer-type", options.tokenizer_type, "ByteTokenizer or NullTokenizer")->capture_default_str();
  app.add_option("--vocab-size", options.vocab_size, "number of ids, for NullTokenizer");
  app.add_option("--json-keys", options.json_keys, "keys of JSONL objects that hold text, one output each")
      ->capture_default_str();
  app.add_option("--input-format", options.input_format, "auto takes JSONL for .jsonl and .json, text for the rest")
      ->check(CLI::IsMember({"auto", "text", "jsonl"}))
      ->capture_default_str();
  app.add_option("--split-documents", edges, "what ends a document of plain text")
      ->check(CLI::IsMember({"whole-file", "blank-lines", "lines"}))
      ->capture_default_str();
  app.add_flag("--append-eod", options.append_eod, "end every document with the document end token");
  app.add_flag("--overwrite", options.overwrite, "replace existing output");
  app.add_option("--workers", workers, "accepted without effect: one thread keeps up with the disk")
      ->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : ashlar::exit_code(ashlar::ErrorCode::kUsage);
  }
  const std::map<std::string, ashlar::prepare::DocumentEdges> edge_names = {
      {"whole-file", ashlar::prepare::DocumentEdges::kWholeFile},
      {"blank-lines", ashlar::prepare::DocumentEdges::kBlankLines},
      {"lines", ashlar::prepare::DocumentEdges::kLines}};
  options.document_edges = edge_names.at(edges);
  fmt::print("{}", ashlar::prepare::preprocess(options));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const ashlar::Error& error) {
    fmt::print(stderr, "preprocess_data: {}\n", error.what());
    return ashlar::exit_code(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "preprocess_data: {}\n", error.what());
    return ashlar::exit_code(ashlar::ErrorCode::kInternal);
  }
}
