#include "examples/pretrain_gpt/dry_run.h"

#include <fmt/ranges.h>

#include <iostream>

#include "parallel/plan/plan_text.h"
#include "parallel/train/memory_limit.h"
#include "parallel/train/run_shape_of.h"
#include "parallel/train/training.h"

namespace ashlar {
namespace {

// More ranks than this are told as a formula, so that the plan stays on one screen.
constexpr int kMostRanksInMap = 8;

// What each pipeline stage holds, in words.
std::vector<std::string> stage_texts(const RunShape& shape) {
  std::vector<std::string> texts;
  int64_t first = 0;
  for (size_t stage = 0; stage < shape.layers_per_stage.size(); ++stage) {
    const int64_t count = shape.layers_per_stage[stage];
    texts.push_back(fmt::format("{}layers {}..{}{}", stage == 0 ? "embedding, " : "", first, first + count - 1,
                                stage + 1 == shape.layers_per_stage.size() ? ", head" : ""));
    first += count;
  }
  return texts;
}

std::string grid_text(const RunShape& shape, RankOrder order) {
  const GridShape& grid = shape.grid;
  if (grid.num_ranks() <= kMostRanksInMap) {
    return grid_map(grid, order, stage_texts(shape));
  }
  const int data_stride = world_rank_of(grid, order, {.tensor = 0, .pipeline = 0, .data = grid.data > 1 ? 1 : 0});
  const int pipeline_stride =
      world_rank_of(grid, order, {.tensor = 0, .pipeline = grid.pipeline > 1 ? 1 : 0, .data = 0});
  std::vector<std::string> terms;  // axes of one rank have no part in it
  const auto add = [&](int size, int stride, const char* axis) {
    if (size > 1) {
      terms.push_back(stride == 1 ? axis : fmt::format("{} x {}", stride, axis));
    }
  };
  add(grid.tensor, 1, "tensor");
  add(grid.data, data_stride, "data");
  add(grid.pipeline, pipeline_stride, "pipeline");
  return fmt::format("grid: {} = {} ranks; rank = {}\n", grid.text(), grid.num_ranks(), fmt::join(terms, " + "));
}

TimeQuestion time_question(const TrainOptions& options, const RunShape& shape) {
  const double tokens = options.train_tokens > 0 ? options.train_tokens
                                                 : static_cast<double>(options.train_iters * shape.tokens_per_step());
  return {.num_tokens = options.mfu > 0 ? tokens : 0, .peak_flops = options.peak_tflops * 1e12, .mfu = options.mfu};
}

}  // namespace

int dry_run(RankContext& rank, const TrainOptions& given) {
  const int world_size = given.world_size > 0 ? given.world_size : rank.world.size();
  TrainOptions options;
  agree(rank.world, [&] { options = resolve_options(given, world_size); });
  const bool speaks = rank.world.rank() == 0;
  if (options.num_layers == 0) {
    if (speaks) {
      std::cout << grid_map(grid_shape(options), rank_order(options), {});
    }
    return 0;
  }
  const DeviceRequest device = named_device(options);
  const RunShape shape = run_shape_of(options, device);
  if (speaks) {
    std::cout << grid_text(shape, rank_order(options)) << sharding_text(options) << '\n';
  }
  if (options.micro_batch_size == 0 || options.seq_length == 0) {
    if (speaks) {
      std::cout << "memory, traffic and FLOPs depend on --micro-batch-size and --seq-length: give both\n";
    }
    return 0;
  }
  if (speaks) {
    std::cout << plan_text(shape, time_question(options, shape)) << std::flush;
  }
  agree(rank.world, [&] { check_memory_limit(options, device, TableIs::kShown); });
  if (speaks && options.memory_limit_gb > 0) {
    const std::vector<RankMemory> memory = plan_memory(shape);
    std::cout << fmt::format(
        "a rank needs {:.6g} of the {} GB of --memory-limit-gb\n",
        static_cast<double>(memory[fullest_stage(memory, shape.device)].limited(shape.device)) / 1e9,
        options.memory_limit_gb);
  }
  return 0;
}

}  // namespace ashlar
