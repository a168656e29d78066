// A job of processes on stand-in GPUs over NCCL in which something goes wrong on one rank; process_fault_test.cpp
// starts it and reads what is said.
//   nccl_fault_program <fault> <rank> <timeout seconds>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "runtime/comm/device_world.h"
#include "runtime/comm/wait_reached.h"

namespace ashlar {
namespace {

constexpr int64_t kCount = 1000;

void sleep_for_ever() {
  while (true) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

int run(RankContext& rank, const std::string& fault, int faulty_rank) {
  const int me = rank.world.rank();
  const auto tensor = rank.device_world.split(me / 2, me, "tensor");
  const auto pipeline = rank.device_world.split(me % 2, me, "pipeline");
  rank.recorder.set_coordinate(fmt::format("t{} p{} d0", me % 2, me / 2).c_str());
  signal(SIGTERM, [](int) {});  // as in a training run, where it means "finish the step"
  const auto stream = rank.device.create_stream();
  const auto done = rank.device.create_event();
  const Buffer buffer = rank.device.allocate(kCount * sizeof(float), "test data");
  const TensorView x = view_of(reinterpret_cast<float*>(buffer.data()), {kCount});
  stream->fill_zero(buffer.data(), buffer.bytes());
  return end_job_on_error(rank, [&] {
    for (int step = 0; step < 3; ++step) {
      rank.recorder.set_position(step, "1F2", 2);
      const bool errs = me == faulty_rank && step == 2;
      if (errs && fault == "sleep_collective") {
        sleep_for_ever();
      }
      if (errs && fault == "kill") {
        raise(SIGKILL);
      }
      if (errs && fault == "data") {
        throw Error(ErrorCode::kData, "train.bin: truncated");
      }
      if (errs && fault == "other_op") {
        tensor->broadcast(x, 0, *stream).wait(*stream);
      }
      tensor->all_reduce(x, ReduceOp::kSum, *stream).wait(*stream);
      if (errs && fault == "sleep_receive") {
        stream->synchronize();
        sleep_for_ever();
      }
      const auto direction = pipeline->rank() == 0 ? Transfer::Direction::kSend : Transfer::Direction::kReceive;
      const Transfer leg{direction, 1 - pipeline->rank(), step, x};
      pipeline->exchange({&leg, 1}, *stream).wait(*stream);
      stream->record(*done);
      wait_reached(*done, *stream, rank.recorder, "the end of the step");
      if (errs && fault == "sleep_barrier") {
        sleep_for_ever();
      }
      rank.world.barrier();
    }
    return 0;
  });
}

}  // namespace
}  // namespace ashlar

int main(int argc, char** argv) {
  const std::string fault = argc > 1 ? argv[1] : "none";
  const int faulty_rank = argc > 2 ? std::atoi(argv[2]) : 0;
  const double timeout_seconds = argc > 3 ? std::atof(argv[3]) : 10;
  return ashlar::run_main(argc, argv, [&](ashlar::RankContext& host) {
    host.recorder.set_timeout(timeout_seconds);
    ashlar::DeviceWorld world(host, {.kind = ashlar::DeviceKind::kCuda,
                                     .backend = ashlar::DeviceBackend::kNccl,
                                     .gpu_index = host.world.rank(),
                                     .init_timeout_seconds = timeout_seconds});
    return ashlar::run(world.context(), fault, faulty_rank);
  });
}
