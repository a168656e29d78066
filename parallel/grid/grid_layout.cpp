#include "parallel/grid/grid_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/error.h"

namespace ashlar {

std::string GridShape::text() const {
  return fmt::format("tensor {} x pipeline {} x data {}", tensor, pipeline, data);
}

std::string GridCoordinate::text() const {
  return fmt::format("t{} p{} d{}", tensor, pipeline, data);
}

GridCoordinate coordinate_of(const GridShape& shape, RankOrder order, int world_rank) {
  DCHECK(world_rank >= 0 && world_rank < shape.num_ranks(), "rank {} of {}", world_rank, shape.num_ranks());
  GridCoordinate at;
  at.tensor = world_rank % shape.tensor;
  const int rest = world_rank / shape.tensor;
  if (order == RankOrder::kTensorDataPipeline) {
    at.data = rest % shape.data;
    at.pipeline = rest / shape.data;
  } else {
    at.pipeline = rest % shape.pipeline;
    at.data = rest / shape.pipeline;
  }
  return at;
}

int world_rank_of(const GridShape& shape, RankOrder order, const GridCoordinate& at) {
  const int rest = order == RankOrder::kTensorDataPipeline ? at.pipeline * shape.data + at.data
                                                           : at.data * shape.pipeline + at.pipeline;
  return rest * shape.tensor + at.tensor;
}

std::vector<std::vector<int>> axis_groups(const GridShape& shape, RankOrder order, GridAxis axis) {
  std::vector<std::vector<int>> groups;
  for (int world_rank = 0; world_rank < shape.num_ranks(); ++world_rank) {
    GridCoordinate at = coordinate_of(shape, order, world_rank);
    int& along = axis == GridAxis::kTensor ? at.tensor : axis == GridAxis::kPipeline ? at.pipeline : at.data;
    const int size = axis == GridAxis::kTensor     ? shape.tensor
                     : axis == GridAxis::kPipeline ? shape.pipeline
                                                   : shape.data;
    if (along != 0) {
      continue;  // each group is listed once, by its first member
    }
    std::vector<int> group;
    for (along = 0; along < size; ++along) {
      group.push_back(world_rank_of(shape, order, at));
    }
    groups.push_back(group);
  }
  return groups;
}

std::vector<std::vector<int>> embedding_groups(const std::vector<std::vector<int>>& pipelines) {
  std::vector<std::vector<int>> groups;
  for (const auto& pipeline : pipelines) {
    groups.push_back(pipeline.size() == 1 ? pipeline : std::vector<int>{pipeline.front(), pipeline.back()});
  }
  return groups;
}

std::vector<std::vector<int>> model_groups(const GridShape& shape, RankOrder order) {
  std::vector<std::vector<int>> groups(static_cast<size_t>(shape.data));
  for (int pipeline = 0; pipeline < shape.pipeline; ++pipeline) {
    for (int tensor = 0; tensor < shape.tensor; ++tensor) {
      for (int data = 0; data < shape.data; ++data) {
        groups[static_cast<size_t>(data)].push_back(world_rank_of(shape, order, {tensor, pipeline, data}));
      }
    }
  }
  return groups;
}

std::string grid_map(const GridShape& shape, RankOrder order, const std::vector<std::string>& layers_of_stage) {
  std::string out = fmt::format("grid: {} = {} ranks, order {}\n", shape.text(), shape.num_ranks(),
                                order == RankOrder::kTensorDataPipeline ? "tensor-data-pipeline (tensor fastest)"
                                                                        : "tensor-pipeline-data (tensor fastest)");
  out += "  rank  tensor  pipeline  data   holds\n";
  for (int world_rank = 0; world_rank < shape.num_ranks(); ++world_rank) {
    const GridCoordinate at = coordinate_of(shape, order, world_rank);
    const auto stage = static_cast<size_t>(at.pipeline);
    out += fmt::format("  {:4}  {:6}  {:8}  {:4}   {}\n", world_rank, at.tensor, at.pipeline, at.data,
                       stage < layers_of_stage.size() ? layers_of_stage[stage] : "");
  }
  const auto list = [&out](const char* name, const std::vector<std::vector<int>>& groups) {
    out += fmt::format("  {} groups:", name);
    for (const auto& group : groups) {
      out += fmt::format(" [{}]", fmt::join(group, " "));
    }
    out += '\n';
  };
  list("tensor", axis_groups(shape, order, GridAxis::kTensor));
  list("data", axis_groups(shape, order, GridAxis::kData));
  const auto pipelines = axis_groups(shape, order, GridAxis::kPipeline);
  list("pipeline", pipelines);
  list("embedding", embedding_groups(pipelines));
  list("model", model_groups(shape, order));
  return out;
}

}  // namespace ashlar
