// What is wrong with a grid of ranks, and what follows from their number.
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "kernels/attention.h"
#include "parallel/train/options_check.h"

namespace ashlar {
namespace {

// "1, 2, 3, 4, 6, 12"
std::string divisors(int64_t value) {
  std::vector<int64_t> all;
  for (int64_t n = 1; n * n <= value; ++n) {
    if (value % n == 0) {
      all.push_back(n);
      if (n != value / n) {
        all.push_back(value / n);
      }
    }
  }
  std::ranges::sort(all);
  return fmt::format("{}", fmt::join(all, ", "));
}

// The numbers of heads on both sides that the tensor ranks can share and the width allows.
std::string nearest_heads(int64_t heads, int64_t width, int64_t t) {
  if (width == 0) {
    return "; nearest legal --num-attention-heads: " + multiples_around(heads, t);
  }
  std::vector<int64_t> nearest;
  for (int64_t n = t; n <= width; n += t) {
    if (width % n == 0 && width / n <= kernels::kMaxHeadDim) {
      if (n < heads) {
        nearest = {n};
      } else {
        nearest.push_back(n);
        break;
      }
    }
  }
  return nearest.empty() ? fmt::format("; --hidden-size {} has no number of heads that it can share", width)
                         : fmt::format("; nearest legal --num-attention-heads: {}", fmt::join(nearest, " or "));
}

}  // namespace

void check_grid(const TrainOptions& o, Problems& problems) {
  const int64_t heads = o.num_attention_heads, width = o.hidden_size, t = o.tensor_model_parallel_size;
  const int64_t ffn = o.ffn_hidden_size > 0 ? o.ffn_hidden_size : 4 * width;
  problems.add_if(heads > 0 && heads % t != 0,
                  "--num-attention-heads {} cannot be shared by --tensor-model-parallel-size {}; legal tensor sizes: "
                  "{}{}",
                  heads, t, divisors(std::gcd(heads, ffn)), nearest_heads(heads, width, t));
  problems.add_if(ffn > 0 && ffn % t != 0,
                  "--ffn-hidden-size {}{} cannot be shared by --tensor-model-parallel-size {}; nearest legal "
                  "--ffn-hidden-size: {}",
                  ffn, o.ffn_hidden_size > 0 ? "" : " (4 x --hidden-size)", t, multiples_around(ffn, t));
  problems.add_if(
      o.sequence_parallel && t > 1 && o.seq_length % t != 0,
      "--sequence-parallel cannot share --seq-length {} among --tensor-model-parallel-size {} ranks; nearest "
      "legal --seq-length: {}",
      o.seq_length, t, multiples_around(o.seq_length, t));
  if (o.num_layers > 0) {
    try {
      split_layers(o.num_layers, o.pipeline_model_parallel_size, o.decoder_first_pipeline_num_layers,
                   o.decoder_last_pipeline_num_layers);
    } catch (const Error& error) {
      problems.add(error.what());
    }
  }
}

// Sets o.data_parallel_size.
void resolve_grid(TrainOptions& o, int world_size) {
  const int64_t model = int64_t{o.tensor_model_parallel_size} * o.pipeline_model_parallel_size;
  const bool asked = o.dry_run && o.world_size > 0;
  const std::string grid = fmt::format("--tensor-model-parallel-size {} x --pipeline-model-parallel-size {} = {}",
                                       o.tensor_model_parallel_size, o.pipeline_model_parallel_size, model);
  if (world_size % model != 0) {
    const int64_t below = world_size / model * model;
    std::string starts = fmt::format("{}{}", asked ? "--world-size " : "mpirun -np ", below + model);
    if (below > 0) {
      starts = fmt::format("{}{} or ", asked ? "--world-size " : "mpirun -np ", below) + starts;
    }
    throw Error(ErrorCode::kUsage,
                fmt::format("the world has {} rank{}, which is no multiple of {} (each data rank is one such grid); "
                            "nearest legal: {}",
                            world_size, world_size == 1 ? "" : "s", grid, starts));
  }
  o.data_parallel_size = static_cast<int>(world_size / model);
  o.world_size = world_size;
  const int64_t instances = o.num_distributed_optimizer_instances;
  if (o.data_parallel_size % instances != 0) {
    int64_t below = std::min<int64_t>(instances, o.data_parallel_size);
    while (o.data_parallel_size % below != 0) {
      --below;
    }
    throw Error(ErrorCode::kUsage,
                fmt::format("--num-distributed-optimizer-instances {} does not divide the data size {} (= {} ranks / "
                            "tensor {} / pipeline {}); nearest legal value: {}",
                            instances, o.data_parallel_size, world_size, o.tensor_model_parallel_size,
                            o.pipeline_model_parallel_size, below));
  }
}

}  // namespace ashlar
