// Every contract case on thread ranks (1, 2, 3, 4 and 8, both carriers, inline and queued streams, and over the staged
// communicator and NCCL, on GPUs where there are any: those of the emulated build); under mpirun, on the processes of
// the job.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "runtime/comm/device_world.h"
#include "runtime/device/cuda/cuda_device.h"
#include "tests/runtime/comm/contract_cases.h"
#include "tests/support/run_ranks.h"

namespace ashlar {
namespace {

class Case : public testing::Test {
 public:
  explicit Case(std::function<void()> body) : body_(std::move(body)) {}
  void TestBody() override { body_(); }

 private:
  std::function<void()> body_;
};

void register_case(const std::string& suite, const char* name, const std::function<void()>& body) {
  testing::RegisterTest(suite.c_str(), name, nullptr, nullptr, __FILE__, __LINE__,
                        [body]() -> testing::Test* { return new Case(body); });
}

std::vector<ContractCase> all_cases() {
  std::vector<ContractCase> cases = collective_cases();
  for (const ContractCase& one : exchange_cases()) {
    cases.push_back(one);
  }
  return cases;
}

void register_on_threads(int num_ranks, const std::string& suffix, const ThreadRankOptions& options) {
  for (const ContractCase& one : all_cases()) {
    register_case("Threads" + std::to_string(num_ranks) + suffix, one.name, [=] {
      contract_max_keeps_nan = options.device.backend != DeviceBackend::kNccl;
      run_ranks(num_ranks, one.body, options);
    });
  }
}

int run_under_mpi(int argc, char** argv) {
  return run_main(argc, argv, [](RankContext& host) {
    host.recorder.set_timeout(60);
    DeviceRequest request;
    if (std::getenv("ASHLAR_CONTRACT_NCCL") != nullptr) {
      request = {.kind = DeviceKind::kCuda, .backend = DeviceBackend::kNccl, .gpu_index = host.world.rank()};
      contract_max_keeps_nan = false;
    }
    DeviceWorld world(host, request);
    RankContext& rank = world.context();
    for (const ContractCase& one : all_cases()) {
      register_case("Processes" + std::to_string(rank.world.size()), one.name, [&rank, one] { one.body(rank); });
    }
    return RUN_ALL_TESTS();
  });
}

}  // namespace
}  // namespace ashlar

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    return ashlar::run_under_mpi(argc, argv);
  }
  // Small buffers: many chunks of little data, so that sanitizers are done in seconds. Processes use the real size.
  constexpr size_t kBufferBytes = size_t{16} << 10;
  ashlar::contract_buffer_elements = kBufferBytes / sizeof(float);
  for (const int num_ranks : {1, 2, 3, 4, 8}) {
    ashlar::register_on_threads(num_ranks, "", {.buffer_bytes = kBufferBytes});
  }
  ashlar::register_on_threads(3, "Messages", {.buffer_bytes = kBufferBytes, .carrier = ashlar::Carrier::kMessages});
  ashlar::register_on_threads(4, "Messages", {.buffer_bytes = kBufferBytes, .carrier = ashlar::Carrier::kMessages});
  ashlar::register_on_threads(2, "Queued", {.queued_streams = true, .buffer_bytes = kBufferBytes});
  const auto on_device = [&](int num_ranks, const std::string& suffix, const ashlar::DeviceRequest& device) {
    ashlar::register_on_threads(num_ranks, suffix, {.buffer_bytes = kBufferBytes, .device = device});
  };
  // Pieces smaller than the host communicator's, and no multiple of them.
  constexpr size_t kStagingBytes = kBufferBytes / 2 + 64;
  for (const int num_ranks : {1, 3}) {
    ashlar::register_on_threads(
        num_ranks, "StagedQueued",
        {.queued_streams = true,
         .buffer_bytes = kBufferBytes,
         .device = {.backend = ashlar::DeviceBackend::kStaged, .staging_bytes = kStagingBytes}});
  }
  if (ashlar::num_cuda_devices() > 0) {  // stand-ins, or real ones
    for (const int num_ranks : {1, 2, 4, 8}) {
      const ashlar::DeviceRequest own{
          .kind = ashlar::DeviceKind::kCuda, .backend = ashlar::DeviceBackend::kStaged, .staging_bytes = kStagingBytes};
      ashlar::DeviceRequest shared = own;
      shared.gpu_index = 0;
      on_device(num_ranks, "Staged", own);
      if (num_ranks <= ashlar::num_cuda_devices()) {
        on_device(num_ranks, "Nccl", {.kind = ashlar::DeviceKind::kCuda, .backend = ashlar::DeviceBackend::kNccl});
      }
      on_device(num_ranks, "StagedOneGpu", shared);
    }
  }
  return RUN_ALL_TESTS();
}
