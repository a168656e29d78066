// The rules about GPUs that are there and cannot be used, hosts, processes and NCCL, each broken alone; the cores of a
// rank; facts on their way between ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "runtime/base/error.h"
#include "tests/runtime/device/cuda/healthy_job.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kMiB = int64_t{1} << 20;

// All of these words, in the one message that the job gets.
template <typename... Words>
void expect_problem(const std::vector<RankFacts>& ranks, const DeviceJob& job, Words... words) {
  EXPECT_THAT(check_device_facts(ranks, job), ElementsAre(AllOf(HasSubstr(words)...)))
      << fmt::format("{}", fmt::join(check_device_facts(ranks, job), "\n"));
}

TEST(CheckGpus, ProhibitedMode) {
  std::vector<RankFacts> ranks = healthy();
  ranks[2].is_prohibited = true;
  ranks[2].failure = "cudaErrorDevicesUnavailable";
  ranks[2].free_bytes = -1;
  expect_problem(ranks, {}, "host node1 (rank 2)", "Prohibited", "GPU-00000002",
                 "nvidia-smi -i 0000:1b:00.0 -c DEFAULT");
}

TEST(CheckGpus, OneThatAnotherProcessHolds) {
  std::vector<RankFacts> ranks = healthy();
  ranks[3].is_exclusive = true;
  EXPECT_THAT(check_device_facts(ranks), IsEmpty());  // one rank is what the mode allows
  ranks[3].failure = "cudaErrorDevicesUnavailable (CUDA-capable device(s) is/are busy or unavailable)";
  expect_problem(ranks, {}, "host node1 (rank 3)", "does not answer", "busy or unavailable", "Exclusive_Process");
}

TEST(CheckGpus, AnInstanceOfAPartitionedGpu) {
  std::vector<RankFacts> ranks = healthy();
  ranks[0].is_mig = true;
  ranks[0].name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb";
  expect_problem(ranks, {}, "host node0 (rank 0)", "MIG 1g.5gb", "--distributed-backend staged");
  EXPECT_THAT(check_device_facts(ranks, {.nccl = false}), IsEmpty());
  EXPECT_THAT(check_device_facts(std::span(ranks).first(1)), IsEmpty());  // alone it joins nobody
}

TEST(CheckGpus, FreeMemoryAgainstThePlan) {
  std::vector<RankFacts> ranks = healthy();
  for (RankFacts& rank : ranks) {
    rank.needed_bytes = int64_t{40} << 30;
  }
  EXPECT_THAT(check_device_facts(ranks), IsEmpty());
  ranks[1].free_bytes = int64_t{41} << 30;
  EXPECT_THAT(check_device_facts(ranks), IsEmpty());  // the plan and 1 GiB, to the byte
  --ranks[1].free_bytes;
  expect_problem(ranks, {}, "host node0 (rank 1)", "44.0 GB are free", "44.0 GB are needed",
                 "41.9 GB of its 85.9 GB are in use", "--micro-batch-size");
}

TEST(CheckGpus, RanksThatShareAGpuShareItsMemory) {
  std::vector<RankFacts> ranks = healthy();
  ranks[1].uuid = ranks[0].uuid;
  for (RankFacts& rank : ranks) {
    rank.needed_bytes = int64_t{40} << 30;
  }
  expect_problem(ranks, {.nccl = false}, "host node0 (ranks 0-1)", "84.8 GB are free", "88.0 GB are needed");
  for (RankFacts& rank : ranks) {
    rank.needed_bytes = int64_t{30} << 30;
  }
  EXPECT_THAT(check_device_facts(ranks, {.nccl = false}), IsEmpty());
  expect_problem(ranks, {}, "use the same GPU", "--distributed-backend staged");
}

TEST(MissingGpus, AreNoGpusAndNothingElse) {
  std::vector<RankFacts> ranks = healthy();
  ranks[0].nccl_library = 21700;
  ranks[1].environment.clear();
  EXPECT_THAT(missing_gpus(ranks), IsEmpty());
  ranks[2].driver_version = ranks[3].driver_version = 0;
  EXPECT_THAT(missing_gpus(ranks), ElementsAre(HasSubstr("no NVIDIA driver")));
}

TEST(CheckNccl, Versions) {
  std::vector<RankFacts> ranks = healthy();
  ranks[3].nccl_library = 23000;
  expect_problem(ranks, {}, "different versions of NCCL", "NCCL 2.28.9 on hosts node0, node1 (ranks 0-2)",
                 "NCCL 2.30.0 on host node1 (rank 3)", "LD_LIBRARY_PATH");
  for (RankFacts& rank : ranks) {
    rank.nccl_library = 22600;
  }
  expect_problem(ranks, {}, "NCCL 2.26.0 was loaded", "header of 2.28.3");
  for (RankFacts& rank : ranks) {
    rank.nccl_library = 21805;
  }
  expect_problem(ranks, {}, "NCCL 2.18.5 was loaded", "2.19.0 or newer");
  for (RankFacts& rank : ranks) {
    rank.nccl_library = rank.nccl_header = 0;
    rank.nccl_failure = rank.host == "node1" ? "NCCL does not load: no such file" : "";
  }
  EXPECT_THAT(check_device_facts(ranks),
              ElementsAre(HasSubstr("host node1 (ranks 2-3): NCCL does not load: no such file"),
                          HasSubstr("host node0 (ranks 0-1): this program was built")));
  for (RankFacts& rank : ranks) {
    rank.nccl_failure = "";
  }
  expect_problem(ranks, {}, "hosts node0, node1 (ranks 0-3)", "built without NCCL", "--distributed-backend staged");
  EXPECT_THAT(check_device_facts(ranks, {.nccl = false}), IsEmpty());
}

TEST(CheckBuilds, TwoOfThem) {
  std::vector<RankFacts> ranks = healthy();
  ranks[2].build = ranks[3].build = "4567";
  expect_problem(ranks, {.nccl = false}, "different builds", "build 0123 on host node0 (ranks 0-1)",
                 "build 4567 on host node1 (ranks 2-3)");
}

TEST(CheckLimits, LockedMemoryWithInfiniBand) {
  std::vector<RankFacts> ranks = healthy();
  for (const int rank : {2, 3}) {
    ranks[rank].locked_bytes = 64 * kMiB - 1;
  }
  expect_problem(ranks, {}, "host node1 (ranks 2-3)", "may lock 67.1 MB", "ulimit -l unlimited", "ibv_reg_mr");
  for (const int rank : {2, 3}) {
    ranks[rank].has_infiniband = false;
  }
  EXPECT_THAT(check_device_facts(ranks), IsEmpty());
}

TEST(CheckLimits, SharedMemory) {
  std::vector<RankFacts> ranks = healthy();
  ranks[0].shared_bytes = ranks[1].shared_bytes = 128 * kMiB;
  EXPECT_THAT(check_device_facts(ranks), IsEmpty());
  ranks[0].shared_bytes = ranks[1].shared_bytes = 64 * kMiB;  // what docker gives
  expect_problem(ranks, {}, "host node0 (ranks 0-1)", "67.1 MB are free in /dev/shm", "2 ranks need 134.2 MB",
                 "--shm-size=1g");
}

TEST(CheckLimits, OpenFilesAmongManyRanks) {
  std::vector<RankFacts> ranks = healthy(33);
  ranks[4].open_files = ranks[5].open_files = 1024;
  expect_problem(ranks, {}, "host node2 (ranks 4-5)", "may open 1024 files", "66 ranks", "ulimit -n 65536");
  EXPECT_THAT(check_device_facts(std::span(ranks).first(64)), IsEmpty());
}

TEST(CheckLimits, UnlimitedStackBeforeNccl228) {
  std::vector<RankFacts> ranks = healthy();
  for (RankFacts& rank : ranks) {
    rank.unlimited_stack = rank.host == "node0";
  }
  EXPECT_THAT(check_device_facts(ranks), IsEmpty());
  for (RankFacts& rank : ranks) {
    rank.nccl_library = rank.nccl_header = 22703;
  }
  expect_problem(ranks, {}, "host node0 (ranks 0-1)", "stack is unlimited", "NCCL 2.27.3", "ulimit -s 8192");
}

TEST(CheckLimits, AHostWithoutNetwork) {
  std::vector<RankFacts> ranks = healthy();
  ranks[2].interfaces = ranks[3].interfaces = {};
  expect_problem(ranks, {}, "host node1 (ranks 2-3)", "no network interface", "NCCL_SOCKET_IFNAME");
  EXPECT_THAT(check_device_facts(std::span(ranks).last(2)), IsEmpty());  // one host needs none
}

TEST(WarnHosts, GpusThatCannotReachEachOther) {
  std::vector<RankFacts> ranks = healthy();
  ranks[0].no_peer_access = {1, 5};  // nobody uses 5
  ranks[1].no_peer_access = {0};
  EXPECT_THAT(warn_device_facts(ranks), ElementsAre(AllOf(HasSubstr("host node0 (ranks 0-1)"), HasSubstr("GPUs 0-1 "),
                                                          HasSubstr("nvidia-smi topo -m"))));
  EXPECT_THAT(warn_device_facts(ranks, {.nccl = false}), IsEmpty());
}

TEST(WarnHosts, MoreThreadsThanCores) {
  std::vector<RankFacts> ranks = healthy();
  ranks[3].cpus = {6, 7};
  EXPECT_THAT(warn_device_facts(ranks),
              ElementsAre(AllOf(HasSubstr("host node1 (rank 3)"), HasSubstr("4 threads"),
                                HasSubstr("2 cores only, 6-7"), HasSubstr("--bind-to none"))));
}

TEST(CoresFor, ThoseBesideTheGpuDividedAmongItsRanks) {
  std::vector<RankFacts> ranks = healthy();
  for (RankFacts& rank : ranks) {
    rank.local_cpus = {0, 1, 2, 3, 4, 8, 9};  // 8 and 9 are not ours
  }
  EXPECT_THAT(cores_for(ranks, 0), ElementsAre(0, 1));
  EXPECT_THAT(cores_for(ranks, 1), ElementsAre(2, 3, 4));
  EXPECT_THAT(cores_for(ranks, 3), ElementsAre(2, 3, 4));  // each host for itself
  ranks[1].local_cpus = {4, 5};
  EXPECT_THAT(cores_for(ranks, 0), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(cores_for(ranks, 1), ElementsAre(4, 5));
}

TEST(CoresFor, WhatALauncherBoundIsKept) {
  std::vector<RankFacts> ranks = healthy();
  for (RankFacts& rank : ranks) {
    rank.local_cpus = {0, 1, 2, 3};
  }
  ranks[0].cpus = {0, 1};
  ranks[1].cpus = {2, 3, 4};
  EXPECT_THAT(cores_for(ranks, 0), ElementsAre(0, 1));
  EXPECT_THAT(cores_for(ranks, 1), ElementsAre(2, 3));
  ranks[1].cpus = {6};  // elsewhere altogether
  EXPECT_THAT(cores_for(ranks, 1), IsEmpty());
}

TEST(CoresFor, LessThanACoreForEach) {
  std::vector<RankFacts> ranks = healthy();
  for (RankFacts& rank : ranks) {
    rank.local_cpus = {5};
  }
  EXPECT_THAT(cores_for(ranks, 1), ElementsAre(5));
  for (RankFacts& rank : ranks) {
    rank.local_cpus = {};  // the kernel does not say
  }
  EXPECT_THAT(cores_for(ranks, 1), IsEmpty());
  EXPECT_THAT(cores_for({}, 0), IsEmpty());
}

TEST(RunOnCores, BindsThisThreadAndItsChildren) {
  std::thread([] {
    RankFacts before;
    gather_host_facts(before);
    run_on_cores({before.cpus.back()});
    std::thread([&] {
      RankFacts after;
      gather_host_facts(after);
      EXPECT_THAT(after.cpus, ElementsAre(before.cpus.back()));
    }).join();
  }).join();
  EXPECT_THROW(run_on_cores({CPU_SETSIZE - 1}), Error);
}

TEST(FactsAsText, ComeBackAsTheyWere) {
  RankFacts facts = healthy()[3];
  facts.failure = "no \"answer\"\n";
  facts.local_cpus = {1, 2};
  facts.no_peer_access = {4};
  facts.is_mig = facts.unlimited_stack = true;
  facts.needed_bytes = 77;
  facts.locked_bytes = 99;
  const std::string text = to_text(facts);
  const RankFacts back = rank_facts_of(text);
  EXPECT_EQ(to_text(back), text);
  EXPECT_EQ(back.failure, facts.failure);
  EXPECT_EQ(back.environment, facts.environment);
  EXPECT_EQ(back.needed_bytes, 77);
  EXPECT_THROW(rank_facts_of("{}"), Error);
  facts.environment["NCCL_X"] = "\xff";  // no UTF-8
  EXPECT_NO_THROW(rank_facts_of(to_text(facts)));
}

TEST(CpuList, IsWrittenAsTheKernelDoes) {
  EXPECT_EQ(cpu_list_text({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(cpu_list_text({}), "");
}

}  // namespace
}  // namespace ashlar
