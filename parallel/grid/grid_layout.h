// Ranks and coordinates of a tensor x pipeline x data grid. Pure arithmetic: the dry run uses it without any rank.
#pragma once

#include <string>
#include <vector>

namespace ashlar {

struct GridShape {
  int tensor = 1;
  int pipeline = 1;
  int data = 1;

  int num_ranks() const { return tensor * pipeline * data; }
  std::string text() const;  // "tensor 2 x pipeline 2 x data 2"
  bool operator==(const GridShape&) const = default;
};

struct GridCoordinate {
  int tensor = 0;
  int pipeline = 0;
  int data = 0;

  std::string text() const;  // "t1 p0 d1"
  bool operator==(const GridCoordinate&) const = default;
};

// The axis that varies fastest comes first: Megatron's default, and its --use-tp-pp-dp-mapping.
enum class RankOrder { kTensorDataPipeline, kTensorPipelineData };

GridCoordinate coordinate_of(const GridShape& shape, RankOrder order, int world_rank);
int world_rank_of(const GridShape& shape, RankOrder order, const GridCoordinate& coordinate);

// The groups of one axis, each as world ranks in the order of that axis.
enum class GridAxis { kTensor, kPipeline, kData };
std::vector<std::vector<int>> axis_groups(const GridShape& shape, RankOrder order, GridAxis axis);

// First and last stage of each pipeline group: the holders of a tied table.
std::vector<std::vector<int>> embedding_groups(const std::vector<std::vector<int>>& pipelines);
// All ranks of one data coordinate, pipeline-major: together they hold every parameter once.
std::vector<std::vector<int>> model_groups(const GridShape& shape, RankOrder order);

// A table of ranks, coordinates and groups, for --dry-run. `layers_of_stage` is shown beside each pipeline coordinate.
std::string grid_map(const GridShape& shape, RankOrder order, const std::vector<std::string>& layers_of_stage);

}  // namespace ashlar
