#include "parallel/train/train_checkpoint.h"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "parallel/train/flags.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/manifest.h"

namespace ashlar {
namespace {

// Settings that make the model what it is: a checkpoint with others does not fit.
constexpr std::array kModelFlags = {
    "num-layers",
    "hidden-size",
    "num-attention-heads",
    "ffn-hidden-size",
    "max-position-embeddings",
    "vocab-size",
    "norm-epsilon",
    "activation",
    "untie-embeddings-and-output-weights",
    "optimizer",
};
// Settings that change how training goes on; allowed to differ, but said.
constexpr std::array kTrainingFlags = {
    "global-batch-size",
    "seq-length",
    "seed",
    "data-order",
    "lr",
    "min-lr",
    "lr-decay-style",
    "lr-decay-iters",
    "lr-warmup-iters",
    "lr-warmup-init",
    "weight-decay",
    "adam-beta1",
    "adam-beta2",
    "adam-eps",
    "clip-grad",
    "eod-mask-loss",
    "bf16",
    "fp16",
    "grad-reduce-in-bf16",
    "hidden-dropout",
    "attention-dropout",
};
// The same, where both runs are in fp16.
constexpr std::array kLossScaleFlags = {"loss-scale", "min-loss-scale", "loss-scale-window", "hysteresis"};

// The inverse of options_json, for settings that still exist.
TrainOptions options_from_json(const nlohmann::json& json) {
  TrainOptions options;
  const auto text_of = [](const nlohmann::json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  for (const auto& [name, value] : json.items()) {
    const Flag* flag = find_flag(name);
    if (flag == nullptr || flag->status != FlagStatus::kDone || value.is_null()) {
      continue;
    }
    std::vector<std::string> values;
    if (value.is_array()) {
      for (const nlohmann::json& part : value) {
        values.push_back(text_of(part));
      }
    } else {
      values.push_back(text_of(value));
    }
    apply_flag(*flag, values, "the checkpoint's " + name, options);
  }
  return options;
}

// A setting as a user of these options types it.
struct Typed {
  std::string value;
  std::string advice;
};

Typed typed(const std::string& flag, const nlohmann::json& value, const TrainOptions& options) {
  if (value.is_boolean()) {
    return value.get<bool>() ? Typed{"on", "give --" + flag} : Typed{"off", "leave --" + flag + " out"};
  }
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (flag == "vocab-size" && options.tokenizer_type == "NullTokenizer" && options.load_hf.empty()) {
    text = fmt::format("{}", value.get<int64_t>() - 1);  // the id that ends documents is not counted there
  }
  return {text, fmt::format("give --{} {}", flag, text)};
}

void compare_settings(const Training& training, const nlohmann::json& saved, const std::string& directory) {
  const nlohmann::json now = options_json(training.options);
  for (const char* flag : kModelFlags) {
    if (saved.contains(flag) && now.contains(flag) && saved[flag] != now[flag]) {
      const Typed was = typed(flag, saved[flag], training.options);
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("--load {}: --{} is {} here, but the checkpoint was written with {}; {}, or another "
                              "--load",
                              directory, flag, typed(flag, now[flag], training.options).value, was.value, was.advice));
    }
  }
  if (training.rank.world.rank() != 0) {
    return;
  }
  const auto compare = [&](const char* flag) {
    if (saved.contains(flag) && now.contains(flag) && saved[flag] != now[flag]) {
      training.rank.log.warning("--load {}: --{} was {}, is {} now; losses will differ from an uninterrupted run",
                                directory, flag, typed(flag, saved[flag], training.options).value,
                                typed(flag, now[flag], training.options).value);
    }
  };
  for (const char* flag : kTrainingFlags) {
    if (std::string_view(flag) == "lr-decay-iters" && training.options.lr_decay_style == "constant" &&
        saved.value("lr-decay-style", "") == "constant") {
      continue;  // it follows --train-iters, and nothing decays
    }
    compare(flag);
  }
  for (const char* flag : kLossScaleFlags) {
    if (training.options.fp16 && saved.value("fp16", false)) {
      compare(flag);
    }
  }
}

// Null where there is no loss scale.
nlohmann::json loss_scaler_json(const Training& training) {
  if (!training.options.fp16) {
    return nullptr;
  }
  const LossScaler::State& state = training.loss_scaler.state();
  return {{"scale", state.scale},
          {"good_steps", state.good_steps},
          {"hysteresis_left", state.hysteresis_left},
          {"skips_at_floor", state.skips_at_floor}};
}

// A run in another precision saved no scale: this one begins with its own.
void restore_loss_scaler(Training& training, const nlohmann::json& json) {
  if (!json.is_null() && training.options.fp16) {
    training.loss_scaler.restore({.scale = json.at("scale").get<double>(),
                                  .good_steps = json.at("good_steps").get<int64_t>(),
                                  .hysteresis_left = json.at("hysteresis_left").get<int64_t>(),
                                  .skips_at_floor = json.at("skips_at_floor").get<int64_t>()});
  }
}

// Settings that change in which order, or from what, sums are taken. The grid is one too, and is meant to change.
void warn_of_other_rounding(const Training& training, const nlohmann::json& saved, const std::string& directory) {
  const TrainOptions before = options_from_json(saved);
  const TrainOptions& now = training.options;
  const auto compare = [&](const char* flag, const std::string& was, const std::string& is) {
    if (was != is) {
      training.rank.log.warning(
          "--load {}: --{} was {}, is {} now; losses will differ from an uninterrupted run by rounding", directory,
          flag, was, is);
    }
  };
  const auto when = [](const TrainOptions& o) { return reduces_each_microbatch(o) ? "micro-batch" : "step"; };
  const auto split = [](const TrainOptions& o) {
    return o.sequence_parallel && o.tensor_model_parallel_size > 1 ? "on" : "off";
  };
  compare("grad-reduce", when(before), when(now));
  const auto on = [](bool set) { return set ? "on" : "off"; };
  const auto number = [](int64_t value) { return fmt::format("{}", value); };
  compare("micro-batch-size", number(before.micro_batch_size), number(now.micro_batch_size));
  compare("sequence-parallel", split(before), split(now));
  compare("allow-tf32", on(before.allow_tf32), on(now.allow_tf32));
  compare("gemm", before.gemm, now.gemm);
  compare("num-distributed-optimizer-instances", number(before.num_distributed_optimizer_instances),
          number(now.num_distributed_optimizer_instances));
}

// Collective. Blocks the host. After a write into masters.
void publish_masters(Training& training) {
  training.optimizer.round_masters();
  training.sync.values().updated();
  training.stream->synchronize();
}

}  // namespace

std::vector<NamedSlice> checkpoint_slices(const Training& training, bool with_moments) {
  using Kind = Optimizer::StateKind;
  constexpr std::pair<Kind, const char*> kKinds[] = {
      {Kind::kMaster, "model/"}, {Kind::kFirstMoment, "adam_m/"}, {Kind::kSecondMoment, "adam_v/"}};
  const Optimizer& optimizer = training.optimizer;
  std::vector<NamedSlice> slices;
  for (size_t at = 0; at < optimizer.pieces().size(); ++at) {
    const Optimizer::Piece& piece = optimizer.pieces()[at];
    const Parameter& parameter = *training.store.entries()[piece.entry].parameter;
    for (const auto& [kind, prefix] : kKinds) {
      if (kind == Kind::kMaster || (with_moments && optimizer.has_moments())) {
        NamedSlice& slice = slices.emplace_back();
        slice.name = prefix + parameter.name;
        slice.shard = parameter.shard;
        slice.data = optimizer.state_of(at, kind);
        slice.owned = training.store.saves(piece.entry);
        slice.begin = piece.begin;
        if (slice.data.data == nullptr) {
          slice.bring = [&optimizer, at, kind = kind](SliceUse use) {
            return optimizer.bring_state(at, kind, use == SliceUse::kWrite);
          };
        }
      }
    }
  }
  return slices;
}

void save_training(Training& training, const std::string& directory, uint64_t data_fingerprint,
                   const StorageOptions& storage) {
  training.stream->synchronize();
  const std::vector<NamedSlice> slices = checkpoint_slices(training, true);
  const nlohmann::json state = {{"iteration", training.state.iteration},
                                {"consumed_samples", training.state.consumed_samples},
                                {"num_updates", training.optimizer.num_updates()},
                                {"num_skipped", training.state.num_skipped},
                                {"num_nan", training.state.num_nan},
                                {"loss_scaler", loss_scaler_json(training)},
                                {"data_fingerprint", data_fingerprint},
                                {"options", options_json(training.options)}};
  save_checkpoint(training.rank, {directory, training.state.iteration, slices, storage}, state);
}

std::optional<int64_t> load_training(Training& training, const std::string& directory, uint64_t data_fingerprint) {
  agree(training.rank.world, [&] {
    std::error_code ignored;
    REQUIRE(!std::filesystem::exists(directory, ignored) || std::filesystem::is_directory(directory, ignored),
            ErrorCode::kCheckpoint, "--load {}: expected a directory that --save wrote, found a file", directory);
  });
  const std::optional<int64_t> iteration = find_checkpoint(training.rank, directory);
  if (!iteration) {
    return std::nullopt;
  }
  agree(training.rank.world, [&] {
    const Manifest manifest = read_manifest(CheckpointLayout(directory).set(*iteration), *iteration);
    compare_settings(training, manifest.state.at("options"), directory);
    if (training.rank.world.rank() == 0) {
      warn_of_other_rounding(training, manifest.state.at("options"), directory);
    }
  });
  training.stream->synchronize();
  const std::vector<NamedSlice> slices = checkpoint_slices(training, true);
  const nlohmann::json state = load_checkpoint(training.rank, directory, *iteration, slices);
  publish_masters(training);
  training.state.iteration = state.at("iteration").get<int64_t>();
  training.state.consumed_samples = state.at("consumed_samples").get<int64_t>();
  training.optimizer.set_num_updates(state.at("num_updates").get<int64_t>());
  training.state.num_skipped = state.value("num_skipped", int64_t{0});
  training.state.num_nan = state.value("num_nan", int64_t{0});
  restore_loss_scaler(training, state.value("loss_scaler", nlohmann::json()));
  if (training.rank.world.rank() == 0 && state.at("data_fingerprint").get<uint64_t>() != data_fingerprint) {
    training.rank.log.warning("--load {}: the data or its order is not that of the run that saved", directory);
  }
  return iteration;
}

void load_hf_weights(Training& training, const std::string& directory) {
  training.stream->synchronize();
  load_hf(training.rank, directory, checkpoint_slices(training, false));
  publish_masters(training);
}

HfConfig hf_config(const GptConfig& config) {
  HfConfig hf;
  hf.vocab_size = config.vocab;
  hf.n_positions = config.max_positions;
  hf.n_embd = config.width;
  hf.n_layer = config.num_layers;
  hf.n_head = config.num_heads;
  hf.n_inner = config.ffn;
  hf.gelu_erf = config.activation == kernels::Activation::kGeluErf;
  hf.layer_norm_epsilon = config.norm_epsilon;
  hf.tie_word_embeddings = config.tied;
  return hf;
}

TrainOptions saved_options(const std::string& directory, int64_t iteration) {
  const Manifest manifest = read_manifest(CheckpointLayout(directory).set(iteration), iteration);
  return options_from_json(manifest.state.at("options"));
}

}  // namespace ashlar
