#include "parallel/grid/process_grid.h"

#include "runtime/base/error.h"

namespace ashlar {

ProcessGrid::ProcessGrid(RankContext& rank, const GridShape& shape, RankOrder order, int num_instances)
    : shape_(shape), order_(order), num_instances_(num_instances), world_(rank.device_world) {
  REQUIRE(rank.device_world.size() == shape.num_ranks(), ErrorCode::kUsage,
          "{} needs {} ranks, but {} were started; launch with mpirun -np {}", shape.text(), shape.num_ranks(),
          rank.device_world.size(), shape.num_ranks());
  coordinate_ = coordinate_of(shape, order, rank.device_world.rank());
  rank.log.set_who(fmt::format("rank {} {}", rank.device_world.rank(), coordinate_.text()));
  rank.recorder.set_coordinate(coordinate_.text().c_str());

  // A group's color is any number that all its members, and nobody else, compute alike.
  const auto [t, p, d] = coordinate_;
  tensor_ = world_.split(p * shape.data + d, t, "tensor");
  pipeline_ = world_.split(t * shape.data + d, p, "pipeline");
  data_ = world_.split(t * shape.pipeline + p, d, "data");
  if (num_instances > 1) {
    DCHECK(shape.data % num_instances == 0, "{} instances of {} data ranks", num_instances, shape.data);
    const int num_shards = shape.data / num_instances;
    const int model = t * shape.pipeline + p;
    shard_ = world_.split(model * num_instances + d / num_shards, d, "shard");
    replicate_ = world_.split(model * num_shards + d % num_shards, d, "replicate");
  }
  model_ = world_.split(d, p * shape.tensor + t, "model");
  embedding_ = world_.split(is_first_stage() || is_last_stage() ? t * shape.data + d : -1, p, "embedding");

  // In the same order on all ranks, so that no two wait for each other in different groups.
  for (Communicator* group : {&world_, tensor_.get(), pipeline_.get(), data_.get(), shard_.get(), replicate_.get(),
                              model_.get(), embedding_.get()}) {
    if (group != nullptr) {
      group->prepare_collectives();
    }
  }
  pipeline_->prepare_exchanges();  // the only axis with messages
}

Communicator& ProcessGrid::replicate() const {
  DCHECK(replicate_ != nullptr, "one instance has no replicas");
  return *replicate_;
}

Communicator& ProcessGrid::embedding() const {
  DCHECK(embedding_ != nullptr, "stage {} holds no embedding table", coordinate_.pipeline);
  return *embedding_;
}

}  // namespace ashlar
