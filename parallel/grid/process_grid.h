// The grid as one rank sees it: its coordinate, and a communicator along each axis.
#pragma once

#include <memory>

#include "parallel/grid/grid_layout.h"
#include "runtime/comm/launch.h"

namespace ashlar {

class ProcessGrid {
 public:
  // Collective. Blocks the host. Prepares every axis for what a step does along it. `num_instances` (of
  // --num-distributed-optimizer-instances) divides the data size. Throws Error(kUsage) when the world has another size
  // than the grid.
  ProcessGrid(RankContext& rank, const GridShape& shape, RankOrder order = RankOrder::kTensorDataPipeline,
              int num_instances = 1);

  const GridShape& shape() const { return shape_; }
  const GridCoordinate& coordinate() const { return coordinate_; }
  bool is_first_stage() const { return coordinate_.pipeline == 0; }
  bool is_last_stage() const { return coordinate_.pipeline == shape_.pipeline - 1; }
  int world_rank_at(const GridCoordinate& coordinate) const { return world_rank_of(shape_, order_, coordinate); }

  Communicator& world() const { return world_; }
  Communicator& tensor() const { return *tensor_; }
  Communicator& pipeline() const { return *pipeline_; }
  Communicator& data() const { return *data_; }
  // The data axis in two: shard() are data ranks that follow each other and share what is shared out, replicate() those
  // that own the same in every such group. With one instance, shard() is data() and nobody replicates.
  Communicator& shard() const { return num_instances_ > 1 ? *shard_ : *data_; }
  Communicator& replicate() const;
  int num_instances() const { return num_instances_; }
  // All ranks of one data coordinate: together they hold every parameter once (the global norm is summed here).
  Communicator& model() const { return *model_; }
  // First and last stage of one tensor and data coordinate, which share a tied table; throws on the stages between.
  Communicator& embedding() const;

 private:
  GridShape shape_;
  RankOrder order_;
  int num_instances_;
  GridCoordinate coordinate_;
  Communicator& world_;
  std::unique_ptr<Communicator> tensor_;
  std::unique_ptr<Communicator> pipeline_;
  std::unique_ptr<Communicator> data_;
  std::unique_ptr<Communicator> shard_;  // with more than one instance
  std::unique_ptr<Communicator> replicate_;
  std::unique_ptr<Communicator> model_;
  std::unique_ptr<Communicator> embedding_;
};

}  // namespace ashlar
