#include "parallel/train/start.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "parallel/model/hf_gpt2.h"
#include "runtime/base/hash.h"

namespace ashlar {
namespace {

// One size or choice of a Hugging Face config.json: it sets the option, and a flag that says otherwise is an error.
template <typename T>
void take(ParsedCommand& command, const char* flag, T& option, const T& from_file) {
  const bool given = std::find(command.given.begin(), command.given.end(), flag) != command.given.end();
  REQUIRE(!given || option == from_file, ErrorCode::kUsage,
          "--{} {} contradicts --load-hf {}: its config.json says {}; leave the flag out or give {}", flag, option,
          command.options.load_hf, from_file, from_file);
  option = from_file;
  if (!given) {
    command.options.files[flag] = command.options.load_hf + "/config.json";
  }
}

void take_hf_config(ParsedCommand& command) {
  TrainOptions& options = command.options;
  const HfConfig config = read_hf_config(options.load_hf);
  take(command, "num-layers", options.num_layers, config.n_layer);
  take(command, "hidden-size", options.hidden_size, config.n_embd);
  take(command, "num-attention-heads", options.num_attention_heads, config.n_head);
  take(command, "ffn-hidden-size", options.ffn_hidden_size, config.n_inner);
  take(command, "max-position-embeddings", options.max_position_embeddings, config.n_positions);
  if (options.tokenizer_type == "NullTokenizer" && options.vocab_size + 1 == config.vocab_size) {
    options.vocab_size = config.vocab_size;  // as it was given to the run that wrote the file
  }
  take(command, "vocab-size", options.vocab_size, config.vocab_size);
  take(command, "norm-epsilon", options.norm_epsilon, config.layer_norm_epsilon);
  const auto gelu = [](bool erf) { return std::string(erf ? "gelu-erf" : "gelu-tanh"); };
  std::string activation = gelu(options.gelu_erf);
  take(command, "activation", activation, gelu(config.gelu_erf));
  REQUIRE(!config.gelu_erf || std::ranges::count(command.given, "openai-gelu") == 0, ErrorCode::kUsage,
          "--openai-gelu contradicts --load-hf {}: its config.json says gelu-erf; leave the flag out", options.load_hf);
  options.gelu_erf = config.gelu_erf;
  take(command, "untie-embeddings-and-output-weights", options.untie_embeddings_and_output_weights,
       !config.tie_word_embeddings);
  if (options.seq_length == 0) {
    options.seq_length = options.max_position_embeddings;
  }
}

void take_vocabulary(TrainOptions& options) {
  if (options.tokenizer_type == "NullTokenizer" && options.load_hf.empty()) {
    options.vocab_size = make_tokenizer(options.tokenizer_type, options.vocab_size)->vocab_size();
  } else if (options.vocab_size == 0) {
    options.vocab_size = make_tokenizer(options.tokenizer_type)->vocab_size();
  }
}

// Collective. `mpirun -np 1 P --help : -np 1 P ...`: a rank that only prints would leave the others waiting.
void require_same_command(RankContext& rank, bool prints) {
  const std::vector<std::string> all = all_gather_text(rank.world, prints ? "prints" : "trains");
  agree(rank.world, [&] {
    for (size_t other = 1; other < all.size(); ++other) {
      const bool first_prints = all[0] == "prints";
      REQUIRE(
          all[other] == all[0], ErrorCode::kUsage,
          "--help or --help-flags was given to some ranks only: to rank {}, not to rank {}; give all ranks the same",
          first_prints ? 0 : other, first_prints ? other : 0);
    }
  });
}

// Collective. Names the first setting that differs between ranks.
void require_same_settings(RankContext& rank, const TrainOptions& options) {
  const std::vector<std::string> all = all_gather_text(rank.world, options_json(options).dump());
  agree(rank.world, [&] {
    for (size_t other = 1; other < all.size(); ++other) {
      if (all[other] == all[0]) {
        continue;
      }
      const auto first = nlohmann::json::parse(all[0]);
      const auto second = nlohmann::json::parse(all[other]);
      for (const auto& [name, value] : first.items()) {
        REQUIRE(second.at(name) == value, ErrorCode::kUsage,
                "ranks were given different settings: --{} is {} on rank 0 and {} on rank {}", name, value.dump(),
                second.at(name).dump(), other);
      }
    }
  });
}

}  // namespace

ParsedCommand start_command(RankContext& rank, const std::vector<std::string>& args) {
  ParsedCommand command;
  agree(rank.world, [&] {
    REQUIRE(!args.empty(), ErrorCode::kUsage, "a training run needs flags; --help begins with examples");
    command = parse_train_options(args);
    if (command.print) {
      return;
    }
    // Before the first wait, which is the end of this agreement.
    rank.recorder.set_timeout(command.options.distributed_timeout_seconds);
    try {
      if (!command.options.load_hf.empty()) {
        take_hf_config(command);
      }
      take_vocabulary(command.options);
    } catch (const Error& error) {
      throw Error(error.code(), in_users_words(command.options, error.what()), error.place());
    }
    validate_options(command.options);
  });
  require_same_command(rank, command.print.has_value());
  if (command.print) {
    return command;
  }
  require_same_settings(rank, command.options);
  if (rank.world.rank() == 0) {
    for (const std::string& note : command.notes) {
      rank.log.info("{}", note);
    }
  }
  return command;
}

TrainOptions resolve_for_world(RankContext& rank, const TrainOptions& options) {
  TrainOptions resolved;
  agree(rank.world, [&] { resolved = resolve_options(options, rank.world.size()); });
  return resolved;
}

int name_settings(const TrainOptions& options, const std::function<int()>& body) {
  try {
    return body();
  } catch (const AgreedError& error) {
    throw AgreedError(error.code(), in_users_words(options, error.what()), error.place());
  } catch (const Error& error) {
    throw Error(error.code(), in_users_words(options, error.what()), error.place());
  }
}

std::unique_ptr<Tokenizer> tokenizer_of(const TrainOptions& options) {
  // A NullTokenizer of N numbers has N + 1 ids; the others know their own size.
  return make_tokenizer(options.tokenizer_type, options.tokenizer_type == "NullTokenizer" ? options.vocab_size - 1 : 0);
}

DataSources open_data(RankContext& rank, const TrainOptions& options) {
  DataSources sources;
  agree(rank.world, [&] {
    const auto tokenizer = tokenizer_of(options);
    DataOptions data;
    data.data_path = options.data_path;
    data.train_data_path = options.train_data_path;
    data.valid_data_path = options.valid_data_path;
    data.split = options.split;
    data.mock_data = options.mock_data;
    data.need_valid = options.eval_interval > 0 && options.eval_iters > 0;
    data.samples = {.seq_length = options.seq_length,
                    .vocab_size = options.vocab_size,
                    .eod_token = tokenizer->eod(),
                    .eod_mask_loss = options.eod_mask_loss,
                    .order = parse_data_order(options.data_order),
                    .seed = static_cast<uint64_t>(options.seed)};
    sources = open_datasets(data);
  });
  const std::vector<std::string> all = all_gather_text(rank.world, fmt::format("{:016x}", sources.fingerprint));
  agree(rank.world, [&] {
    for (size_t other = 1; other < all.size(); ++other) {
      REQUIRE(all[other] == all[0], ErrorCode::kData,
              "ranks see different data under --data-path: fingerprint {} on rank 0, {} on rank {}; is the path the "
              "same file on every host?",
              all[0], all[other], other);
    }
  });
  return sources;
}

}  // namespace ashlar
