#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/base/error.h"
#include "runtime/device/cuda/cuda_device.h"
#include "tests/runtime/device/cuda/healthy_job.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(CheckDeviceFacts, AHealthyJobHasNoProblem) {
  EXPECT_THAT(check_device_facts(healthy()), IsEmpty());
  EXPECT_THAT(warn_device_facts(healthy()), IsEmpty());
  EXPECT_THAT(check_device_facts({}), IsEmpty());
}

TEST(CheckDeviceFacts, ABuildWithoutCuda) {
  std::vector<RankFacts> ranks(2);
  ranks[1].world_rank = 1;
  ranks[0].host = ranks[1].host = "laptop";
  EXPECT_THAT(check_device_facts(ranks),
              ElementsAre(AllOf(HasSubstr("laptop"), HasSubstr("ranks 0-1"), HasSubstr("built without CUDA"))));
}

TEST(CheckDeviceFacts, NoDriver) {
  std::vector<RankFacts> ranks = healthy();
  for (const int rank : {2, 3}) {
    ranks[rank].driver_version = 0;
    ranks[rank].num_visible = 0;
    take_gpu(ranks[rank]);
  }
  // One cause, one message: not "too few GPUs" as well.
  EXPECT_THAT(check_device_facts(ranks),
              ElementsAre(AllOf(HasSubstr("host node1 (ranks 2-3)"), HasSubstr("no NVIDIA driver loaded"),
                                Not(HasSubstr("insufficient")))));
}

TEST(CheckDeviceFacts, DriverTooOld) {
  std::vector<RankFacts> ranks = healthy();
  for (const int rank : {0, 1}) {
    ranks[rank].driver_version = 12080;
    ranks[rank].num_visible = 0;
    take_gpu(ranks[rank]);
  }
  EXPECT_THAT(check_device_facts(ranks),
              ElementsAre(AllOf(HasSubstr("host node0 (ranks 0-1)"), HasSubstr("too old"), HasSubstr("CUDA 12.8"),
                                HasSubstr("CUDA 13.0"), HasSubstr("CUDA 13 needs R580, CUDA 12 needs R525"))));
}

TEST(CheckDeviceFacts, ADriverOfAnotherMinorVersionWillDo) {
  std::vector<RankFacts> ranks = healthy();
  for (RankFacts& rank : ranks) {
    rank.runtime_version = 12060;
    rank.driver_version = 12020;
  }
  EXPECT_THAT(check_device_facts(ranks), IsEmpty());
}

TEST(CheckDeviceFacts, TooFewGpus) {
  std::vector<RankFacts> ranks = healthy(1);
  for (const int rank : {2, 3}) {
    ranks.push_back(ranks[1]);
    ranks.back().world_rank = rank;
    ranks.back().host_rank = rank;
  }
  for (RankFacts& rank : ranks) {
    rank.visible_devices = "'0,1'";
    take_gpu(rank);
  }
  EXPECT_THAT(check_device_facts(ranks),
              ElementsAre(AllOf(HasSubstr("host node0 (ranks 0-3)"), HasSubstr("4 ranks but 2 visible GPUs"),
                                HasSubstr("CUDA_VISIBLE_DEVICES is '0,1'"), HasSubstr("ppr:2:node"))));
}

TEST(CheckDeviceFacts, TwoRanksOnOneGpu) {
  std::vector<RankFacts> ranks = healthy();
  for (const int rank : {2, 3}) {
    ranks[rank].num_visible = 1;
    ranks[rank].device_index = 0;
    ranks[rank].visible_devices = "'0'";
    ranks[rank].uuid = "GPU-same";
    ranks[rank].pci_id = "0000:1b:00.0";
  }
  EXPECT_THAT(check_device_facts(ranks),
              ElementsAre(AllOf(HasSubstr("host node1 (ranks 2-3)"), HasSubstr("GPU-same"), HasSubstr("0000:1b:00.0"),
                                HasSubstr("rank 2 took device 0 of 1 as rank 0 of its host"),
                                HasSubstr("rank 3 took device 0 of 1 as rank 1 of its host"),
                                HasSubstr("CUDA_VISIBLE_DEVICES is '0'"))));
}

// Each rank is shown its own GPU as device 0: that is fine.
TEST(CheckDeviceFacts, AGpuOfItsOwnForEachRank) {
  std::vector<RankFacts> ranks = healthy();
  for (RankFacts& rank : ranks) {
    rank.num_visible = 1;
    rank.device_index = 0;
    rank.visible_devices = fmt::format("'{}'", rank.host_rank);
    rank.environment["CUDA_VISIBLE_DEVICES"] = fmt::format("{}", rank.host_rank);
  }
  EXPECT_THAT(check_device_facts(ranks), IsEmpty());
}

TEST(CheckDeviceFacts, WrongArchitecture) {
  std::vector<RankFacts> ranks = healthy();
  for (const int rank : {2, 3}) {
    ranks[rank].name = "Tesla V100";
    ranks[rank].compute_major = 7;
  }
  EXPECT_THAT(check_device_facts(ranks),
              ElementsAre(AllOf(HasSubstr("Tesla V100"), HasSubstr("compute capability 7.0"),
                                HasSubstr("host node1 (ranks 2-3)"), HasSubstr("sm_80, sm_90a, compute_80"))));
}

TEST(CheckDeviceFacts, WhichArchitecturesRunWhere) {
  const auto runs = [](const std::vector<std::string>& built_for, int major, int minor) {
    std::vector<RankFacts> ranks = healthy(1);
    for (RankFacts& rank : ranks) {
      rank.built_for = built_for;
      rank.compute_major = major;
      rank.compute_minor = minor;
    }
    return check_device_facts(ranks).empty();
  };
  EXPECT_TRUE(runs({"sm_80"}, 8, 0));
  EXPECT_TRUE(runs({"sm_80"}, 8, 9));
  EXPECT_FALSE(runs({"sm_89"}, 8, 0));
  EXPECT_FALSE(runs({"sm_80"}, 9, 0));
  EXPECT_TRUE(runs({"sm_90a"}, 9, 0));
  EXPECT_FALSE(runs({"sm_90a"}, 10, 0));
  EXPECT_TRUE(runs({"compute_80"}, 12, 0));
  EXPECT_FALSE(runs({"compute_80"}, 7, 5));
  EXPECT_TRUE(runs({"sm_100", "compute_100"}, 12, 0));
  EXPECT_TRUE(runs({"sm_70", "sm_90"}, 9, 0));
  EXPECT_TRUE(runs({}, 7, 0));  // no kernels, nothing to ask
}

TEST(CheckDeviceFacts, AVariableThatDiffers) {
  std::vector<RankFacts> ranks = healthy();
  ranks[2].environment.erase("NCCL_ALGO");
  ranks[3].environment.erase("NCCL_ALGO");
  EXPECT_THAT(
      check_device_facts(ranks),
      ElementsAre(AllOf(HasSubstr("NCCL_ALGO is 'Ring' on ranks 0-1, unset on ranks 2-3"), HasSubstr("-x NCCL_ALGO"))));
}

// Hosts name their network devices as they like; the ranks of one host should agree.
TEST(CheckDeviceFacts, NetworkDevicesMayDifferBetweenHosts) {
  std::vector<RankFacts> ranks = healthy();
  for (RankFacts& rank : ranks) {
    rank.environment["NCCL_SOCKET_IFNAME"] = rank.world_rank < 2 ? "eth0" : "ens3";
  }
  EXPECT_THAT(check_device_facts(ranks), IsEmpty());
  ranks[3].environment["NCCL_SOCKET_IFNAME"] = "lo";
  EXPECT_THAT(check_device_facts(ranks),
              ElementsAre(HasSubstr("NCCL_SOCKET_IFNAME is 'ens3' on rank 2, 'lo' on rank 3")));
}

TEST(CheckDeviceFacts, EachCauseHasItsOwnMessage) {
  std::vector<RankFacts> ranks = healthy(3);
  ranks[0].driver_version = ranks[1].driver_version = 0;
  ranks[3].uuid = ranks[2].uuid;
  ranks[4].compute_major = 6;
  ranks[5].environment["OMP_NUM_THREADS"] = "8";
  EXPECT_THAT(check_device_facts(ranks),
              ElementsAre(HasSubstr("no NVIDIA driver"), HasSubstr("was built for"), HasSubstr("use the same GPU"),
                          HasSubstr("OMP_NUM_THREADS is '4' on ranks 0-4, '8' on rank 5")));
}

TEST(WarnDeviceFacts, GpusOfSeveralKinds) {
  std::vector<RankFacts> ranks = healthy();
  ranks[1].memory_bytes = int64_t{40} << 30;
  ranks[3].name = "NVIDIA H200";
  EXPECT_THAT(
      warn_device_facts(ranks),
      ElementsAre(AllOf(HasSubstr("ranks 0, 2: NVIDIA A100-SXM4-80GB, 85.9 GB, compute capability 8.0"),
                        HasSubstr("rank 1: NVIDIA A100-SXM4-80GB, 42.9 GB"), HasSubstr("rank 3: NVIDIA H200"))));
}

TEST(ChooseCudaDevice, ByTheNumberOnTheHost) {
  EXPECT_EQ(choose_cuda_device({.world_rank = 13, .host_rank = 5, .num_host_ranks = 8}, 8), 5);
  EXPECT_EQ(choose_cuda_device({.world_rank = 1, .host_rank = 1, .num_host_ranks = 2}, 8), 1);
  EXPECT_EQ(choose_cuda_device({.world_rank = 13, .host_rank = 5, .num_host_ranks = 8}, 1), 0);
  EXPECT_EQ(choose_cuda_device({.world_rank = 0, .host_rank = 0, .num_host_ranks = 8}, 4), -1);  // all are told
  EXPECT_EQ(choose_cuda_device({.world_rank = 7, .host_rank = 7, .num_host_ranks = 8}, 4), -1);
  EXPECT_EQ(choose_cuda_device({}, 0), -1);
  // Ranks that may share take the GPUs in turn.
  EXPECT_EQ(choose_cuda_device({.world_rank = 7, .host_rank = 5, .num_host_ranks = 8}, 2, true), 1);
  EXPECT_EQ(choose_cuda_device({.world_rank = 7, .host_rank = 5, .num_host_ranks = 8}, 0, true), -1);
}

TEST(LocalCpus, AreReadAsTheKernelWritesThem) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("7"), (std::vector<int>{7}));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
  for (const char* text : {"x", "1-", "-1", "1,,2", "1 2"}) {
    EXPECT_THROW(parse_cpu_list(text), Error) << text;
  }
}

TEST(LocalCpus, ComeFromThePciDevice) {
  const std::filesystem::path sysfs = std::filesystem::path(testing::TempDir()) / fmt::format("sysfs_{}", getpid());
  const std::filesystem::path device = sysfs / "bus/pci/devices/0000:1b:00.0";
  std::filesystem::create_directories(device);
  std::ofstream(device / "local_cpulist") << "4-5,12\n";
  EXPECT_EQ(read_local_cpus("0000:1b:00.0", sysfs), (std::vector<int>{4, 5, 12}));
  EXPECT_THAT(read_local_cpus("0000:2b:00.0", sysfs), IsEmpty());
  std::filesystem::remove_all(sysfs);
}

// With the real runtime, or without CUDA: whatever this machine has, the facts are of this process.
TEST(GatherRankFacts, TellsOfThisProcess) {
  setenv("NCCL_ASHLAR_TEST", "a=b", 1);
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // shows no GPU, where there is one
  const RankFacts facts = gather_rank_facts({.world_rank = 5, .host_rank = 1, .num_host_ranks = 2}, {"sm_80"});
  unsetenv("NCCL_ASHLAR_TEST");
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(facts.world_rank, 5);
  EXPECT_EQ(facts.host_rank, 1);
  EXPECT_FALSE(facts.host.empty());
  EXPECT_EQ(facts.visible_devices, "''");
  EXPECT_EQ(facts.environment.at("NCCL_ASHLAR_TEST"), "a=b");
  EXPECT_EQ(facts.built_for, std::vector<std::string>{"sm_80"});
  EXPECT_EQ(facts.device_index, -1);
  EXPECT_THAT(check_device_facts(std::vector{facts}, {.nccl = false}), testing::SizeIs(1));
  EXPECT_FALSE(facts.build.empty());
  EXPECT_FALSE(facts.cpus.empty());
}

TEST(CudaDevice, OneThatIsNotThereIsRefused) {
  try {
    make_cuda_device(1000);
    FAIL() << "make_cuda_device did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("CUDA device 1000"));
  }
  EXPECT_THROW(make_cuda_device(-1), Error);
}

}  // namespace
}  // namespace ashlar
