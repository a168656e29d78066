#include "examples/bench_train/model_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>

namespace ashlar {
namespace {

struct ModelSizes {
  std::string_view name;
  int64_t num_layers, width, num_heads, vocab;
};
// Small is for comparisons in short time, tiny for trying this program out where GPUs are slow or played.
constexpr std::array<ModelSizes, 4> kModels = {ModelSizes{"124m", 12, 768, 12, 50257},
                                               {"1.3b", 24, 2048, 16, 50257},
                                               {"small", 6, 384, 6, 8192},
                                               {"tiny", 2, 64, 1, 512}};

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ModelSizes& sizes : kModels) {
    names.emplace_back(sizes.name);
  }
  return names;
}

TrainOptions train_options(const BenchOptions& bench, int num_ranks, const std::string& more) {
  const ModelSizes& sizes =
      *std::find_if(kModels.begin(), kModels.end(), [&](const ModelSizes& known) { return known.name == bench.model; });
  std::vector<std::string> args = {"--mock-data", "--tokenizer-type", "NullTokenizer", "--device", bench.device};
  const auto give = [&](const char* flag, auto value) {
    args.emplace_back(flag);
    args.push_back(fmt::format("{}", value));
  };
  give("--num-layers", sizes.num_layers);
  give("--hidden-size", sizes.width);
  give("--num-attention-heads", sizes.num_heads);
  give("--vocab-size", sizes.vocab);
  give("--seq-length", bench.seq_length);
  give("--max-position-embeddings", std::max<int64_t>(1024, bench.seq_length));
  give("--micro-batch-size", bench.micro_batch_size);
  give("--train-iters", 1000);
  give("--lr", 1e-4);
  args.insert(args.end(), bench.flags.begin(), bench.flags.end());
  std::istringstream words(more);
  for (std::string word; words >> word;) {
    args.push_back(word);
  }
  TrainOptions options = parse_train_options(args).options;
  const int model_ranks = options.tensor_model_parallel_size * options.pipeline_model_parallel_size;
  options.global_batch_size = bench.micro_batch_size * bench.accumulate * std::max(1, num_ranks / model_ranks);
  return resolve_options(options, num_ranks);
}

MockSource source_of(const TrainOptions& options) {
  return MockSource("bench", {.seq_length = options.seq_length, .vocab_size = options.vocab_size});
}

}  // namespace ashlar
