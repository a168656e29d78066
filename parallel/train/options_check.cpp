// All that is checked of a set of options, and all that follows from the number of ranks.
#include "parallel/train/options_check.h"
#include "parallel/train/flags.h"

namespace ashlar {
namespace {

// Ranges and choices again, for options that no parser has seen.
void check_values(const TrainOptions& o, Problems& problems) {
  for (const Flag& flag : done_flags()) {
    const auto* list = std::get_if<std::vector<std::string> TrainOptions::*>(&flag.target);
    for (const std::string& value : list ? o.**list : std::vector<std::string>{shown_value(flag, o)}) {
      try {
        if (!value.empty()) {
          check_flag_value(flag, value, "--" + flag.name);
        }
      } catch (const Error& error) {
        problems.add(error.what());
      }
    }
  }
}

}  // namespace

void validate_options(const TrainOptions& options) {
  Problems values;
  check_values(options, values);
  values.raise(options);  // the checks below divide by some of them
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
  problems.raise(options);
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
  try {
    resolve_grid(o, o.dry_run && o.world_size > 0 ? o.world_size : world_size);
    resolve_batch(o);
    resolve_length(o);
    resolve_loss_scale(o);
    check_faults_of_world(o);
  } catch (const Error& error) {
    throw Error(error.code(), in_users_words(options, error.what()), error.place());
  }
  return o;
}

}  // namespace ashlar
