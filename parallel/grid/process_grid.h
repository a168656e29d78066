// The grid as one rank sees it: its coordinate, and a communicator along each axis.
#pragma once

#include <memory>

#include "parallel/grid/grid_layout.h"
#include "runtime/comm/launch.h"

namespace ashlar {

class ProcessGrid {
 public:
  // Collective. Blocks the host. Prepares every axis for what a step does along it. Throws Error(kUsage) when the world
  // has another size than the grid.
  ProcessGrid(RankContext& rank, const GridShape& shape, RankOrder order = RankOrder::kTensorDataPipeline);

  const GridShape& shape() const { return shape_; }
  const GridCoordinate& coordinate() const { return coordinate_; }
  bool is_first_stage() const { return coordinate_.pipeline == 0; }
  bool is_last_stage() const { return coordinate_.pipeline == shape_.pipeline - 1; }
  int world_rank_at(const GridCoordinate& coordinate) const { return world_rank_of(shape_, order_, coordinate); }

  Communicator& world() const { return world_; }
  Communicator& tensor() const { return *tensor_; }
  Communicator& pipeline() const { return *pipeline_; }
  Communicator& data() const { return *data_; }
  // All ranks of one data coordinate: together they hold every parameter once (the global norm is summed here).
  Communicator& model() const { return *model_; }
  // First and last stage of one tensor and data coordinate, which share a tied table; throws on the stages between.
  Communicator& embedding() const;

 private:
  GridShape shape_;
  RankOrder order_;
  GridCoordinate coordinate_;
  Communicator& world_;
  std::unique_ptr<Communicator> tensor_;
  std::unique_ptr<Communicator> pipeline_;
  std::unique_ptr<Communicator> data_;
  std::unique_ptr<Communicator> model_;
  std::unique_ptr<Communicator> embedding_;
};

}  // namespace ashlar
