// No operation takes memory from the heap once the rings have been round.
#include <gtest/gtest.h>

#include "tests/runtime/comm/contract_data.h"
#include "tests/support/count_allocations.h"
#include "tests/support/run_ranks.h"

namespace ashlar {
namespace {

using test::num_allocations;

TEST(Allocations, NoneInAnyOperationAfterWarmUp) {
  for (const Carrier carrier : {Carrier::kRegion, Carrier::kMessages}) {
    run_ranks(2,
              [](RankContext& rank) {
                const auto stream = rank.device.create_stream();
                const std::unique_ptr<Communicator> comm = rank.world.split(0, rank.world.rank(), "group");
                std::vector<float> x(100000);
                std::vector<float> part(50000);
                std::vector<float> in(1000);
                const Transfer legs[] = {{Transfer::Direction::kSend, 1 - comm->rank(), 1, view(part)},
                                         {Transfer::Direction::kReceive, 1 - comm->rank(), 1, view(x).slice(0, 50000)}};
                const auto operations = [&] {
                  for (int turn = 0; turn < 200; ++turn) {
                    rank.recorder.set_position(turn, "1F2", 2);
                    comm->all_reduce(view(in), ReduceOp::kSum, *stream).wait(*stream);
                    comm->exchange(legs, *stream).wait(*stream);
                    if (turn % 50 == 0) {
                      comm->all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
                      comm->reduce_scatter(view(part), view(x), ReduceOp::kSum, *stream).wait(*stream);
                      comm->all_gather(view(x), view(part), *stream).wait(*stream);
                      comm->broadcast(view(x), 1, *stream).wait(*stream);
                      comm->barrier();
                    }
                  }
                };
                operations();  // warm-up
                num_allocations = 0;
                operations();
                EXPECT_EQ(num_allocations, 0);
                const std::vector<int> counted(1);
                EXPECT_EQ(num_allocations, 1);  // the counter counts
              },
              {.timeout_seconds = 60, .carrier = carrier});
  }
}

}  // namespace
}  // namespace ashlar
