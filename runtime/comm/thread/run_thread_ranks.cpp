#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

#include "runtime/comm/device_world.h"
#include "runtime/comm/host/host_communicator.h"
#include "runtime/comm/launch.h"
#include "runtime/comm/thread/thread_world.h"
#include "runtime/device/cpu/cpu_device.h"
#include "runtime/device/cuda/cuda_device.h"

namespace ashlar {
namespace {

// The error that ended the run: that of the rank which ended the job. What others throw only says that they stopped.
class FirstError {
 public:
  void keep(std::exception_ptr error, bool ended_the_job) {
    const std::lock_guard lock(mutex_);
    if (!error_ || ended_the_job) {
      error_ = std::move(error);
    }
  }
  void rethrow() const {
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

void run_rank(ThreadWorld& world, int world_rank, const std::function<void(RankContext&)>& body,
              const ThreadRankOptions& options, FirstError& first_error) {
  try {
    Log log(fmt::format("rank {}", world_rank));
    FlightRecorder recorder(world.board(), world_rank);
    recorder.set_timeout(options.timeout_seconds);
    CpuDevice device(options.queued_streams ? CpuStreamKind::kQueued : CpuStreamKind::kInline);
    ThreadRank rank(world, recorder);
    HostCommunicator communicator(rank, world_group(world_rank, world.num_ranks()));
    RankContext context{device, communicator, communicator, recorder, log, {world_rank, world.num_ranks()}};
    DeviceRequest request = options.device;
    if (request.kind == DeviceKind::kCuda && request.gpu_index < 0) {
      request.gpu_index = world_rank % std::max(1, num_cuda_devices());
    }
    DeviceWorld device_world(context, request);
    body(device_world.context());
  } catch (const Error& error) {
    world.board().end_job(world_rank, error.code(), error.what());
    first_error.keep(std::current_exception(), world.board().ended_by() == world_rank);
  } catch (const std::exception& error) {
    world.board().end_job(world_rank, ErrorCode::kInternal, error.what());
    first_error.keep(std::current_exception(), world.board().ended_by() == world_rank);
  }
}

}  // namespace

void run_thread_ranks(int num_ranks, const std::function<void(RankContext&)>& body, const ThreadRankOptions& options) {
  ThreadWorld world(num_ranks, options.carrier, options.buffer_bytes);
  FirstError first_error;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] { run_rank(world, rank, body, options, first_error); });
    }
  }
  first_error.rethrow();
}

}  // namespace ashlar
