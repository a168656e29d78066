// A job of processes in which something goes wrong on one rank; process_fault_test.cpp starts it and reads what is
// said.
//   fault_program <fault> <rank> <timeout seconds>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/launch.h"

namespace ashlar {
namespace {

[[noreturn]] void sleep_for_ever() {
  while (true) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

int run(RankContext& rank, const std::string& fault, int faulty_rank, double timeout_seconds) {
  Communicator& world = rank.world;
  rank.recorder.set_timeout(timeout_seconds);
  rank.recorder.set_coordinate(fmt::format("t{} p{} d0", world.rank() % 2, world.rank() / 2).c_str());
  // TERM means "finish the step" to a training run, so it must not be what the end of a broken job relies on.
  signal(SIGTERM, [](int) {});
  const std::unique_ptr<Stream> stream = rank.device.create_stream();
  const std::unique_ptr<Communicator> pipeline = world.split(world.rank() % 2, world.rank(), "pipeline");
  std::vector<float> x(50000, 1.0f);
  const TensorView view = view_of(x.data(), {50000});
  world.all_reduce(view, ReduceOp::kSum, *stream).wait(*stream);
  rank.recorder.set_position(4, "1F2", 2);

  const bool faulty = world.rank() == faulty_rank;
  if (faulty && fault == "sleep") {
    sleep_for_ever();
  }
  if (faulty && fault == "kill") {
    raise(SIGKILL);
  }
  if (faulty && fault == "exit") {
    _exit(0);
  }
  if (faulty && fault == "data") {
    throw Error(ErrorCode::kData, "train.bin: truncated");
  }
  if (fault == "agree") {
    agree(world, [&] { REQUIRE(!faulty, ErrorCode::kCheckpoint, "slice 3 is missing"); });
  }
  if (fault == "agree_all") {
    agree(world, [] { throw Error(ErrorCode::kUsage, "--micro-batch-size 0"); });
  }
  if (fault == "other_op") {
    if (faulty) {
      world.broadcast(view, 0, *stream).wait(*stream);
    }
    world.all_reduce(view, ReduceOp::kSum, *stream).wait(*stream);
  }
  if (fault == "no_send") {
    if (pipeline->rank() == 1) {
      sleep_for_ever();
    }
    const Transfer receive{Transfer::Direction::kReceive, 1, 0, view};
    pipeline->exchange({&receive, 1}, *stream).wait(*stream);
  }
  world.barrier();
  return 0;
}

}  // namespace
}  // namespace ashlar

int main(int argc, char** argv) {
  const std::string fault = argc > 1 ? argv[1] : "none";
  const int faulty_rank = argc > 2 ? std::atoi(argv[2]) : 0;
  const double timeout_seconds = argc > 3 ? std::atof(argv[3]) : 10;
  return ashlar::run_main(
      argc, argv, [&](ashlar::RankContext& rank) { return ashlar::run(rank, fault, faulty_rank, timeout_seconds); });
}
