// All that is checked of a set of options, and all that follows from the number of ranks.
#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/train/flags.h"
#include "parallel/train/options_check.h"

namespace ashlar {
namespace {

// Ranges and choices again, for options that no parser has seen.
void check_values(const TrainOptions& o, Problems& problems) {
  for (const Flag& flag : done_flags()) {
    const std::string shown = shown_value(flag, o);
    const std::string name = "--" + flag.name;
    if (shown.empty()) {
      continue;
    }
    const auto number = parse_real(shown);
    problems.add_if(flag.range && !(number && in_range(*flag.range, *number)), "{} expects a number {}, got {}", name,
                    flag.range ? range_text(*flag.range) : "", shown);
    problems.add_if(!flag.choices.empty() && !std::ranges::count(flag.choices, shown), "{} expects one of {}, got {}",
                    name, fmt::join(flag.choices, ", "), shown);
  }
}

}  // namespace

void validate_options(const TrainOptions& options) {
  Problems values;
  check_values(options, values);
  values.raise();  // the checks below divide by some of them
  Problems problems;
  check_model(options, problems);
  check_grid(options, problems);
  check_recompute(options, problems);
  check_length_and_rate(options, problems);
  check_data(options, problems);
  check_device(options, problems);
  check_loss_scale(options, problems);
  check_sharding(options, problems);
  check_offload(options, problems);
  check_files_and_run(options, problems);
  check_faults(options, problems);
  problems.raise();
}

TrainOptions resolve_options(const TrainOptions& options, int world_size) {
  validate_options(options);
  TrainOptions o = options;
  if (o.ffn_hidden_size == 0) {
    o.ffn_hidden_size = 4 * o.hidden_size;
  }
  if (o.recompute_activations) {
    o.recompute_granularity = "selective";
  }
  if (o.kv_channels == 0 && o.num_attention_heads > 0) {
    o.kv_channels = o.hidden_size / o.num_attention_heads;
  }
  if (o.max_position_embeddings == 0) {
    o.max_position_embeddings = o.seq_length;
  }
  if (o.vocab_size == 0 && o.tokenizer_type == "ByteTokenizer" && o.load_hf.empty()) {
    o.vocab_size = kByteVocabulary;
  }
  resolve_grid(o, o.dry_run && o.world_size > 0 ? o.world_size : world_size);
  resolve_batch(o);
  resolve_length(o);
  resolve_loss_scale(o);
  return o;
}

}  // namespace ashlar
