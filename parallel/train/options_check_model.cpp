// What is wrong with the sizes of a model.
#include <algorithm>

#include "kernels/attention.h"
#include "parallel/train/options_check.h"

namespace ashlar {
namespace {

// The least divisor of the width that leaves heads small enough.
int64_t fewest_heads(int64_t width) {
  int64_t heads = (width - 1) / kernels::kMaxHeadDim + 1;
  while (width % heads != 0) {
    ++heads;
  }
  return heads;
}

}  // namespace

void check_model(const TrainOptions& o, Problems& problems) {
  // A dry run without any size only maps ranks; with one of them it plans a model, and that takes all.
  const bool sized = o.num_layers > 0 || o.hidden_size > 0 || o.num_attention_heads > 0 || o.seq_length > 0;
  const bool required = o.load_hf.empty() && (sized || !o.dry_run);
  const auto require = [&](const char* name, int64_t value) {
    problems.add_if(required && value == 0, "--{} is required (or --load-hf DIR, which brings the sizes)", name);
  };
  require("num-layers", o.num_layers);
  require("hidden-size", o.hidden_size);
  require("num-attention-heads", o.num_attention_heads);
  require("seq-length", o.seq_length);
  const int64_t heads = o.num_attention_heads, width = o.hidden_size;
  if (heads > 0 && width > 0) {
    problems.add_if(width % heads != 0,
                    "--hidden-size {} is not a multiple of --num-attention-heads {}; nearest legal --hidden-size: {}",
                    width, heads, multiples_around(width, heads));
    problems.add_if(
        o.kv_channels > 0 && o.kv_channels * heads != width,
        "--kv-channels {} is not supported yet: it must be --hidden-size {} / --num-attention-heads {}; nearest legal "
        "value: {}",
        o.kv_channels, width, heads, std::max<int64_t>(1, width / heads));
    problems.add_if(width % heads == 0 && width / heads > kernels::kMaxHeadDim,
                    "--hidden-size {} / --num-attention-heads {} gives {} values per head, attention takes at most {}; "
                    "nearest legal --num-attention-heads: {}",
                    width, heads, width / heads, kernels::kMaxHeadDim, fewest_heads(width));
  }
  problems.add_if(o.max_position_embeddings > 0 && o.seq_length > o.max_position_embeddings,
                  "--seq-length {} is longer than --max-position-embeddings {}; nearest legal --seq-length: {}",
                  o.seq_length, o.max_position_embeddings, o.max_position_embeddings);
  const bool bytes = o.tokenizer_type == "ByteTokenizer" && o.load_hf.empty();
  problems.add_if(bytes && o.vocab_size > 0 && o.vocab_size < kByteVocabulary,
                  "--vocab-size {} is too small for --tokenizer-type ByteTokenizer; nearest legal value: {}",
                  o.vocab_size, kByteVocabulary);
  problems.add_if(required && o.tokenizer_type == "NullTokenizer" && o.vocab_size == 0,
                  "--tokenizer-type NullTokenizer needs --vocab-size N (token ids are 0 to N-1, and N ends documents)");
}

}  // namespace ashlar
