// sample_gpt: writes text with a model that pretrain_gpt trained, on one rank, from a checkpoint of any grid.
#include <CLI/CLI.hpp>
#include <iostream>

#include "examples/sample_gpt/generator.h"
#include "parallel/train/start.h"

namespace ashlar {
namespace {

struct SampleOptionsOfUser {
  std::string load;
  int64_t iteration = -1;
  int64_t num_bytes = 300;
  std::string prompt;
  SamplingOptions sampling;
};

// Returns false when CLI11 already printed --help.
bool parse(int argc, char** argv, SampleOptionsOfUser& options) {
  CLI::App app{
      "Writes text with a model that pretrain_gpt saved. One rank on the CPU; the checkpoint may come from any grid.\n"
      "Example: sample_gpt --load quickstart/checkpoints --prompt \"And God said\" --num-bytes 300 --temperature 0.8",
      "sample_gpt"};
  app.add_option("--load", options.load, "checkpoint directory, the --save of pretrain_gpt")->required();
  app.add_option("--ckpt-step", options.iteration, "iteration to load; the latest unless given")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--num-bytes", options.num_bytes, "bytes to write after the prompt")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--prompt", options.prompt, "text to go on from; the start of a document unless given");
  app.add_option("--temperature", options.sampling.temperature, "0: always the likeliest token; below 1: safer")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--top-k", options.sampling.top_k, "draw only from the k likeliest tokens; 0: from all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seed", options.sampling.seed, "the same seed writes the same text")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::kUsage, fmt::format("{}; sample_gpt --help lists the flags", error.what()));
  }
  return true;
}

int sample_gpt(RankContext& rank, int argc, char** argv) {
  SampleOptionsOfUser options;
  bool go_on = false;
  agree(rank.world, [&] {
    REQUIRE(rank.world.size() == 1, ErrorCode::kUsage, "sample_gpt runs on one rank, {} were started; leave mpirun out",
            rank.world.size());
    go_on = parse(argc, argv, options);
  });
  if (!go_on) {
    return 0;
  }
  const std::optional<int64_t> iteration =
      options.iteration >= 0 ? std::optional(options.iteration) : find_checkpoint(rank, options.load);
  REQUIRE(iteration.has_value(), ErrorCode::kCheckpoint,
          "--load {}: no whole checkpoint there; expected {}/latest_checkpointed_iteration.txt, as --save of "
          "pretrain_gpt writes it",
          options.load, options.load);
  Generator generator(rank, options.load, *iteration);
  const auto tokenizer = tokenizer_of(generator.options());

  std::vector<int32_t> tokens{tokenizer->eod()};
  tokenizer->encode(options.prompt, tokens);
  std::cout << options.prompt << std::flush;
  int64_t written = 0;
  while (written < options.num_bytes) {
    tokens.push_back(generator.next(tokens, options.sampling, tokens.size()));
    if (tokens.back() == tokenizer->eod()) {
      break;  // the model ended its document
    }
    const std::string piece = tokenizer->decode(std::span(&tokens.back(), 1));
    std::cout << piece << std::flush;
    written += static_cast<int64_t>(piece.size());
  }
  std::cout << std::endl;
  return 0;
}

}  // namespace
}  // namespace ashlar

int main(int argc, char** argv) {
  return ashlar::run_main(argc, argv, [&](ashlar::RankContext& rank) { return ashlar::sample_gpt(rank, argc, argv); });
}
