// How the environment of a launcher is read: N processes that cannot find each other must not train alone.
#include "runtime/comm/host/launch_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

LaunchEnvironment find(const std::map<std::string, std::string>& variables) {
  return find_launch([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string usage_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "no error";
}

TEST(LaunchEnvironment, NothingSetMeansOneRankWithoutMpi) {
  EXPECT_FALSE(find({}).under_mpi);
  EXPECT_FALSE(find({{"SLURM_NTASKS", "8"}}).under_mpi);  // inside an allocation, not started by srun
  EXPECT_FALSE(find({{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}}).under_mpi);
}

TEST(LaunchEnvironment, MpirunIsRecognised) {
  const LaunchEnvironment launch = find({{"OMPI_COMM_WORLD_SIZE", "4"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}});
  EXPECT_TRUE(launch.under_mpi);
  check_world_size(launch, 4);
  EXPECT_TRUE(find({{"PMIX_RANK", "1"}}).under_mpi);
  EXPECT_TRUE(find({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}}).under_mpi);
}

TEST(LaunchEnvironment, SlurmTasksWithoutMpiAreRefused) {
  EXPECT_THAT(usage_error([] {
                find({{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "1"}});
              }),
              AllOf(HasSubstr("SLURM_NTASKS=2"), HasSubstr("announces 2 processes"), HasSubstr("found 1"),
                    HasSubstr("mpirun -np 2")));
}

TEST(LaunchEnvironment, SizesThatDisagreeAreRefused) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const LaunchEnvironment launch = find({{name, "2"}});
    EXPECT_THAT(usage_error([&] { check_world_size(launch, 1); }),
                AllOf(HasSubstr(std::string(name) + "=2"), HasSubstr("found 1")));
  }
  const LaunchEnvironment srun = find({{"PMIX_RANK", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}});
  EXPECT_THAT(usage_error([&] { check_world_size(srun, 1); }), HasSubstr("SLURM_NTASKS=4"));
  check_world_size(srun, 4);
}

}  // namespace
}  // namespace ashlar
