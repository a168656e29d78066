// The CUDA device runs the case list of all devices, on the stand-in, with work that runs at once, at random times, and
// as late as it may.
#include <gmock/gmock.h>

#include <thread>

#include "runtime/base/error.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/cuda_stream.h"
#include "runtime/device/cuda/facts.h"
#include "tests/emulation/standins/cudart/clean_exit.h"
#include "tests/runtime/device/device_contract.h"

namespace ashlar {
namespace {

using standin::Config;
using standin::Delays;
using testing::AllOf;
using testing::HasSubstr;

ContractDevice cuda_device(const std::string& name, int index, uint64_t seed, Delays delays) {
  return {name, [=] {
            Config config;
            config.seed = seed;
            config.delays = delays;
            standin::reset(config);
            return make_cuda_device(index);
          }};
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract,
                         testing::Values(cuda_device("at_once", 0, 1, Delays::kNone),
                                         cuda_device("random_1", 0, 1, Delays::kRandom),
                                         cuda_device("random_2", 0, 2, Delays::kRandom),
                                         cuda_device("late", 0, 1, Delays::kLate),
                                         cuda_device("second_device", 1, 3, Delays::kRandom)),
                         contract_device_name);

TEST(CudaDevice, IsOneOfThoseThatTheProcessSees) {
  EXPECT_EQ(num_cuda_devices(), 2);
  EXPECT_EQ(make_cuda_device(1)->kind(), DeviceKind::kCuda);
  try {
    make_cuda_device(2);
    FAIL() << "make_cuda_device did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("CUDA device 2"), HasSubstr("2 GPUs, 0 to 1")));
  }
}

TEST(CudaDevice, CommunicationGoesFirst) {
  const auto device = make_cuda_device(0);
  const auto compute = device->create_stream(StreamPriority::kCompute);
  const auto communication = device->create_stream(StreamPriority::kCommunication);
  int low = 0;
  int high = 0;
  ASSERT_EQ(cudaStreamGetPriority(cuda_stream(*compute).handle(), &low), cudaSuccess);
  ASSERT_EQ(cudaStreamGetPriority(cuda_stream(*communication).handle(), &high), cudaSuccess);
  EXPECT_LT(high, low);  // CUDA numbers priorities downwards
}

TEST(CudaDevice, OutOfMemoryNamesTheUseAndLeavesNoErrorBehind) {
  Config config;
  config.devices[1].memory_bytes = 1000;
  config.pinned_bytes = 500;
  standin::reset(config);
  const auto device = make_cuda_device(1);
  const Buffer held = device->allocate(600, "weights");
  for (const bool host : {false, true}) {
    try {
      const Buffer refused = host ? device->allocate_host(501, "the use") : device->allocate(401, "the use");
      FAIL() << "the allocation did not throw";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("the use"), HasSubstr("memory")));
    }
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(device->allocate(400, "the rest").bytes(), 400u);
}

// CUDA counts "not yet" as an error, which the check after the next launch would take for the launch's.
TEST(CudaEvent, AskingTooEarlyLeavesNoErrorBehind) {
  Config config;
  config.delays = Delays::kLate;
  standin::reset(config);
  const auto device = make_cuda_device(0);
  const auto stream = device->create_stream();
  const auto event = device->create_event();
  stream->record(*event);
  while (!event->reached()) {
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(CudaDevice, AFailedCallNamesCallDeviceAndCudasText) {
  const auto device = make_cuda_device(1);
  const auto stream = device->create_stream();
  const Buffer a = device->allocate(100, "a"), b = device->allocate(99, "b");
  try {
    stream->copy(b.data(), a.data(), 100);
    FAIL() << "copy did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("CUDA device 1"), HasSubstr("cudaMemcpyAsync"),
                                    HasSubstr("cudaErrorInvalidValue"), HasSubstr("1 bytes beyond its end")));
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(standin::take_reports().size(), 1u);
}

TEST(CudaDevice, IsUsedFromAnyThread) {
  const auto first = make_cuda_device(0), second = make_cuda_device(1);
  for (Device* device : {second.get(), first.get(), second.get()}) {  // the current device changes from one to the next
    const auto stream = device->create_stream();
    const auto event = device->create_event();
    const Buffer a = device->allocate(100, "a");
    std::thread([&] {
      stream->fill_zero(a.data(), a.bytes());
      stream->record(*event);
      event->synchronize();
    }).join();
  }
}

TEST(CudaStream, RefusesAStreamOfAnotherDevice) {
  class OtherDevice : public Device {
   public:
    DeviceKind kind() const override { return DeviceKind::kCpu; }
    std::unique_ptr<Event> create_event() override { return nullptr; }

   protected:
    std::unique_ptr<Stream> make_stream(StreamPriority) override { return nullptr; }
    std::byte* allocate_bytes(MemoryKind, size_t) override { return nullptr; }
    void free_bytes(MemoryKind, std::byte*, size_t) noexcept override {}
  };
  class OtherStream : public Stream {
   public:
    explicit OtherStream(Device& device) : device_(device) {}
    Device& device() const override { return device_; }
    void copy(void*, const void*, size_t) override {}
    void fill_zero(void*, size_t) override {}
    void record(Event&) override {}
    void wait(const Event&) override {}
    void synchronize() override {}

   private:
    Device& device_;
  };
  OtherDevice device;
  OtherStream stream(device);
  EXPECT_THROW(cuda_stream(stream), Error);
}

// What this folder's facts do not hold: the caller asks NCCL.
constexpr int kSomeNccl = 22809;

TEST(GatherRankFacts, TellsOfTheGpuOfTheRank) {
  Config config;
  config.devices[1] = {.name = "Stand-in H200", .memory_bytes = 1 << 20, .compute_major = 9, .compute_minor = 0};
  standin::reset(config);
  RankFacts facts = gather_rank_facts({.world_rank = 3, .host_rank = 1, .num_host_ranks = 2}, {});
  facts.nccl_header = facts.nccl_library = kSomeNccl;
  EXPECT_EQ(facts.runtime_version, CUDART_VERSION);
  EXPECT_EQ(facts.driver_version, CUDART_VERSION);
  EXPECT_EQ(facts.num_visible, 2);
  EXPECT_EQ(facts.device_index, 1);
  EXPECT_EQ(facts.name, "Stand-in H200");
  EXPECT_EQ(facts.uuid, "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae01");
  EXPECT_EQ(facts.pci_id, "0000:1c:00.0");
  EXPECT_EQ(facts.memory_bytes, 1 << 20);
  EXPECT_EQ(facts.compute_major, 9);
  EXPECT_TRUE(check_device_facts(std::vector{facts}).empty());
}

// The start-up situations that need no GPU, from the calls to the message.
TEST(StartUp, SaysWhatIsWrongWithTheMachine) {
  const auto problems = [](const Config& config, int num_ranks) {
    standin::reset(config);
    std::vector<RankFacts> ranks;
    for (int rank = 0; rank < num_ranks; ++rank) {
      ranks.push_back(
          gather_rank_facts({.world_rank = rank, .host_rank = rank, .num_host_ranks = num_ranks}, {"sm_90a"}));
      ranks.back().nccl_header = ranks.back().nccl_library = kSomeNccl;
    }
    return check_device_facts(ranks);
  };
  using testing::ElementsAre;
  Config h200;
  h200.devices.assign(2, {.compute_major = 9});
  EXPECT_THAT(problems(h200, 2), testing::IsEmpty());

  Config config = h200;
  config.driver_version = 0;
  EXPECT_THAT(problems(config, 2), ElementsAre(HasSubstr("no NVIDIA driver loaded")));
  EXPECT_EQ(num_cuda_devices(), 0);
  EXPECT_THROW(make_cuda_device(0), Error);

  config.driver_version = 11080;
  EXPECT_THAT(problems(config, 2), ElementsAre(AllOf(HasSubstr("too old"), HasSubstr("CUDA 11.8"))));
  EXPECT_EQ(num_cuda_devices(), 0);

  config = h200;
  config.devices.clear();
  EXPECT_THAT(problems(config, 2), ElementsAre(HasSubstr("2 ranks but 0 visible GPUs")));
  EXPECT_THAT(problems(h200, 4), ElementsAre(HasSubstr("4 ranks but 2 visible GPUs")));

  config.devices.resize(1);
  EXPECT_THAT(problems(config, 2),
              testing::UnorderedElementsAre(HasSubstr("use the same GPU"), HasSubstr("was built for sm_90a")));
}

}  // namespace
}  // namespace ashlar
