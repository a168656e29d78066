// A training run as a checkpoint: which tensors, which state, and back.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "parallel/model/hf_gpt2.h"
#include "parallel/train/training.h"
#include "runtime/checkpoint/checkpoint.h"

namespace ashlar {

// Pure. What this data rank owns of all weights ("model/...", the fp32 masters where weights are 16 bits wide) and,
// where there are any, of both moments ("adam_m/...", "adam_v/..."), in the optimizer's memory. Every element is saved
// by one rank: its owner among the data ranks (the first, where nothing is shared out), tensor rank 0 where a tensor is
// not split, the first use where it is tied.
std::vector<NamedSlice> checkpoint_slices(const Training& training, bool with_moments);

// Collective. Blocks the host. Saves weights, moments and state as iteration training.state.iteration under
// `directory`. `data_fingerprint` is DataSources::fingerprint.
void save_training(Training& training, const std::string& directory, uint64_t data_fingerprint,
                   const StorageOptions& storage = {});

// Collective. Blocks the host. Goes on from the newest whole checkpoint under `directory`; empty when there is none.
// Throws Error(kCheckpoint) naming the flag when the model has other sizes, and says in one line each what else differs
// from the run that saved (data, batch size, seed, learning rate, ...).
std::optional<int64_t> load_training(Training& training, const std::string& directory, uint64_t data_fingerprint);

// Collective. Blocks the host. Takes all weights from a Hugging Face model.
void load_hf_weights(Training& training, const std::string& directory);

// Pure. The model as a Hugging Face config.json describes it.
HfConfig hf_config(const GptConfig& config);

// Blocks the host. The settings of the run that saved an iteration.
TrainOptions saved_options(const std::string& directory, int64_t iteration);

}  // namespace ashlar
