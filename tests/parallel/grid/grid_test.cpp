// Coordinates, groups and communicators of the grid.
#include <gtest/gtest.h>

#include <set>

#include "parallel/grid/process_grid.h"
#include "tests/support/run_ranks.h"

namespace ashlar {
namespace {

using Groups = std::vector<std::vector<int>>;

constexpr RankOrder kOrders[] = {RankOrder::kTensorDataPipeline, RankOrder::kTensorPipelineData};

TEST(GridLayout, CoordinatesAndRanksAreInverse) {
  for (const RankOrder order : kOrders) {
    for (const GridShape& shape : {GridShape{1, 1, 1}, GridShape{2, 3, 4}, GridShape{4, 1, 2}, GridShape{1, 5, 3}}) {
      std::set<std::string> seen;
      for (int rank = 0; rank < shape.num_ranks(); ++rank) {
        const GridCoordinate at = coordinate_of(shape, order, rank);
        EXPECT_EQ(world_rank_of(shape, order, at), rank);
        EXPECT_LT(at.tensor, shape.tensor);
        EXPECT_LT(at.pipeline, shape.pipeline);
        EXPECT_LT(at.data, shape.data);
        seen.insert(at.text());
      }
      EXPECT_EQ(seen.size(), static_cast<size_t>(shape.num_ranks()));
    }
  }
  EXPECT_THROW(coordinate_of({2, 2, 2}, kOrders[0], 8), Error);
  EXPECT_THROW(coordinate_of({2, 2, 2}, kOrders[0], -1), Error);
}

// Megatron's groups for 8 ranks with tensor and pipeline size 2, in both of its orders.
TEST(GridLayout, MegatronsGroups) {
  const GridShape shape{2, 2, 2};
  const RankOrder standard = RankOrder::kTensorDataPipeline;
  EXPECT_EQ(axis_groups(shape, standard, GridAxis::kTensor), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(axis_groups(shape, standard, GridAxis::kData), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(axis_groups(shape, standard, GridAxis::kPipeline), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  const RankOrder other = RankOrder::kTensorPipelineData;
  EXPECT_EQ(axis_groups(shape, other, GridAxis::kTensor), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(axis_groups(shape, other, GridAxis::kPipeline), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(axis_groups(shape, other, GridAxis::kData), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(GridLayout, MapNamesEveryRank) {
  const std::string map = grid_map({2, 2, 1}, kOrders[0], {"layers 0-1", "layers 2-3"});
  EXPECT_NE(map.find("tensor 2 x pipeline 2 x data 1 = 4 ranks"), std::string::npos) << map;
  EXPECT_NE(map.find("   3       1         1     0   layers 2-3"), std::string::npos) << map;
  EXPECT_NE(map.find("pipeline groups: [0 2] [1 3]"), std::string::npos) << map;
}

std::vector<int> members(const Communicator& comm) {
  return {comm.world_ranks().begin(), comm.world_ranks().end()};
}

TEST(ProcessGrid, CommunicatorsAreTheGroups) {
  for (const RankOrder order : kOrders) {
    for (const GridShape& shape : {GridShape{2, 2, 2}, GridShape{1, 3, 2}, GridShape{1, 1, 1}, GridShape{4, 1, 1}}) {
      run_ranks(shape.num_ranks(), [&](RankContext& rank) {
        const ProcessGrid grid(rank, shape, order);
        const GridCoordinate at = grid.coordinate();
        EXPECT_EQ(at, coordinate_of(shape, order, rank.world.rank()));
        const std::pair<Communicator*, GridAxis> axes[] = {{&grid.tensor(), GridAxis::kTensor},
                                                           {&grid.pipeline(), GridAxis::kPipeline},
                                                           {&grid.data(), GridAxis::kData}};
        for (const auto& [comm, axis] : axes) {
          const Groups groups = axis_groups(shape, order, axis);
          EXPECT_EQ(std::count(groups.begin(), groups.end(), members(*comm)), 1) << comm->name();
          EXPECT_EQ(comm->world_ranks()[static_cast<size_t>(comm->rank())], rank.world.rank());
        }
        EXPECT_EQ(grid.tensor().rank(), at.tensor);
        EXPECT_EQ(grid.pipeline().rank(), at.pipeline);
        EXPECT_EQ(grid.data().rank(), at.data);
        EXPECT_EQ(grid.world_rank_at(at), rank.world.rank());

        const Groups models = model_groups(shape, order);
        EXPECT_EQ(models[static_cast<size_t>(at.data)], members(grid.model()));
        if (grid.is_first_stage() || grid.is_last_stage()) {
          const Groups tables = embedding_groups(axis_groups(shape, order, GridAxis::kPipeline));
          EXPECT_EQ(std::count(tables.begin(), tables.end(), members(grid.embedding())), 1);
        }

        // One data coordinate: every parameter once, in the order pipeline, tensor.
        EXPECT_EQ(grid.model().size(), shape.tensor * shape.pipeline);
        EXPECT_EQ(grid.model().rank(), at.pipeline * shape.tensor + at.tensor);
        for (const int other : grid.model().world_ranks()) {
          EXPECT_EQ(coordinate_of(shape, order, other).data, at.data);
        }
        if (grid.is_first_stage() || grid.is_last_stage()) {
          EXPECT_EQ(grid.embedding().size(), shape.pipeline == 1 ? 1 : 2);
          EXPECT_EQ(grid.embedding().rank(), shape.pipeline == 1 || grid.is_first_stage() ? 0 : 1);  // embedding first
        } else {
          EXPECT_THROW(grid.embedding(), Error);
        }

        // The groups work, and are the right ones.
        const auto stream = rank.device.create_stream();
        for (const auto& [comm, axis] : axes) {
          int64_t sum = int64_t{1} << rank.world.rank();
          comm->all_reduce(view_of(&sum, {1}), ReduceOp::kSum, *stream).wait_host();
          int64_t expected = 0;
          for (const int other : comm->world_ranks()) {
            expected += int64_t{1} << other;
          }
          EXPECT_EQ(sum, expected) << comm->name();
        }
      });
    }
  }
}

TEST(ProcessGrid, RefusesAnotherNumberOfRanks) {
  try {
    run_ranks(2, [](RankContext& rank) { const ProcessGrid grid(rank, {2, 2, 1}); });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    const std::string text = error.what();
    EXPECT_NE(text.find("needs 4 ranks, but 2 were started"), std::string::npos) << text;
    EXPECT_NE(text.find("mpirun -np 4"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace ashlar
