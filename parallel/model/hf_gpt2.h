// GPT-2 in Hugging Face's form: config.json and model.safetensors, as transformers' GPT2LMHeadModel reads and writes
// them.
//
// The tensors are ours under our names, with two differences. GPT-2's "Conv1D" layers keep their weights as [in, out],
// ours are [out, in]; and query, key and value stand side by side in one dim of 3C, which ours calls [3, C]:
//
//   ours                                          in the file (transformer. in front, except for lm_head)
//   wte.weight [V,C]  wpe.weight [P,C]            the same
//   h.i.ln_1.{weight,bias} [C], ln_2, ln_f        the same
//   h.i.attn.c_attn.weight [3,C,C]                [C,3C]    transposed
//   h.i.attn.c_attn.bias   [3,C]                  [3C]
//   h.i.attn.c_proj.weight [C,C]                  [C,C]     transposed; bias [C] the same
//   h.i.mlp.c_fc.weight    [F,C]                  [C,F]     transposed; bias [F] the same
//   h.i.mlp.c_proj.weight  [C,F]                  [F,C]     transposed; bias [C] the same
//   lm_head.weight [V,C], untied models only      the same
//
// Slices are named as above, with or without the "model/" of checkpoints. fp32, memory of the rank's device.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/checkpoint/checkpoint.h"

namespace ashlar {

// What config.json says about the model, under its names.
struct HfConfig {
  int64_t vocab_size = 0;   // V
  int64_t n_positions = 0;  // P
  int64_t n_embd = 0;       // C
  int64_t n_layer = 0;      // L
  int64_t n_head = 0;       // H
  int64_t n_inner = 0;      // F; null in the file stands for 4C
  bool gelu_erf = false;    // activation_function: gelu_new (tanh form) or gelu (erf)
  double layer_norm_epsilon = 1e-5;
  bool tie_word_embeddings = true;
  std::optional<int64_t> eos_token_id = {};
};

// Blocks the host. Throws Error(kCheckpoint) naming file, field, what is supported and what was found for another
// model_type or activation, a missing size, and variants of attention that the runtime does not have.
HfConfig read_hf_config(const std::string& directory);

// Collective. Blocks the host. Fills every slice from model.safetensors, or from the files that
// model.safetensors.index.json lists; fp32, bf16 and fp16 files, with and without the "transformer." prefix. Each rank
// reads only the elements it holds; padding is set to zero. Throws Error(kCheckpoint) on all ranks for missing,
// left-over or differently shaped tensors, and for an lm_head.weight that is not wte.weight although the model ties
// them.
void load_hf(RankContext& rank, const std::string& directory, std::span<const NamedSlice> slices);

// Collective. Blocks the host. Throws Error(kUsage) when `directory` holds anything already: nothing is overwritten.
// For the start of a job that is going to export at its end.
void check_hf_target(RankContext& rank, const std::string& directory);

// Collective. Blocks the host. Writes model.safetensors (fp32) and config.json. Every rank writes the elements it owns
// into one file, beside `directory`, which takes its name when all is on the disk. Throws Error(kCheckpoint) on all
// ranks on failure, and removes what was written.
void save_hf(RankContext& rank, const std::string& directory, const HfConfig& config,
             std::span<const NamedSlice> slices, const StorageOptions& storage_options = {});

}  // namespace ashlar
