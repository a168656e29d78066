// Optimizer state in files under --nvme-path, as real processes: refused before training where it cannot work, ended on
// all ranks where the disk gives up later, and the last checkpoint goes on.
#include <sys/mount.h>

#include <filesystem>
#include <fstream>

#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

namespace fs = std::filesystem;

class Offload : public SystemTest {
 protected:
  Offload() {
    fs::create_directory(path("disk"));
    flags_ = tiny().with("--zero-stage 1 --offload-optimizer-device nvme --nvme-path disk");
  }
  Flags flags_ = tiny();
};

TEST_F(Offload, RunsAsWithStateInMemoryAndLeavesNothing) {
  expect_success(pretrain(2, flags_.without("offload-optimizer-device")
                                 .without("nvme-path")
                                 .with("--check-weight-hash --metrics-file whole.jsonl")));
  const Ended ended = pretrain(2, flags_.with("--check-weight-hash --metrics-file metrics.jsonl"));
  expect_success(ended);
  EXPECT_THAT(ended.err, HasSubstr("disk/ashlar_offload_"));
  expect_same_steps(steps_of("metrics.jsonl"), steps_of("whole.jsonl"));
  EXPECT_TRUE(fs::is_empty(path("disk")));
}

TEST_F(Offload, DirectoriesThatDoNotServeAreRefused) {
  expect_error(pretrain(2, flags_.with("--nvme-path absent")), ErrorCode::kUsage,
               {"--nvme-path absent: expected a directory, found nothing; the nearest directory is "});
  std::ofstream(path("file")) << "x";
  expect_error(pretrain(2, flags_.with("--nvme-path file")), ErrorCode::kUsage, {"--nvme-path file", "found a file"});
  expect_error(pretrain(2, flags_.without("nvme-path")), ErrorCode::kUsage,
               {"--offload-optimizer-device nvme needs --nvme-path DIR"});
}

TEST_F(Offload, SmallAndReadOnlyDisksAreRefused) {
  if (mount("none", path("disk").c_str(), "tmpfs", 0, "size=16k") != 0) {
    GTEST_SKIP() << "this user may not mount a small disk";
  }
  const Ended full = pretrain(2, flags_);
  const int remounted = mount("none", path("disk").c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "");
  const Ended read_only = pretrain(2, flags_);
  umount(path("disk").c_str());
  expect_error(full, ErrorCode::kUsage, {"--nvme-path disk", "No space left on device", "needed ", "free "});
  if (remounted == 0) {
    expect_error(read_only, ErrorCode::kUsage, {"--nvme-path disk", "Read-only file system"});
  }
}

// Only one rank's disk fails, so only it knows; the other must not wait for it for ever. Of the state, or of the
// weights.
TEST_F(Offload, DiskThatFillsUpEndsAllRanksAndTheCheckpointGoesOn) {
  for (const bool of_weights : {false, true}) {
    const std::string ck = of_weights ? "ck_weights" : "ck", whole = ck + "_whole.jsonl", metrics = ck + ".jsonl";
    const Flags flags = of_weights ? flags_.with("--zero-stage 3 --offload-param-device nvme") : flags_;
    const Flags saving = flags.with("--save " + ck + " --save-interval 1 --metrics-file " + metrics);
    expect_success(pretrain(2, flags.with("--metrics-file " + whole)));
    // Far enough for a step or two: moments, or weights, of a part of 4 layers, written once a step.
    const std::string fault =
        std::string("--test-offload-fault rank=1,bytes=1000000") + (of_weights ? ",file=param" : "");
    const Ended ended = pretrain(2, saving.with(fault));
    expect_bad_end(ended);
    EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 1"), HasSubstr("cannot write"), HasSubstr(" at offset "),
                                 HasSubstr("disk/ashlar_offload_"), HasSubstr("No space left on device")));
    // Where the other rank was: it waits for updated values at stage 1, and may be anywhere at stage 3.
    EXPECT_THAT(ended.err, HasSubstr(of_weights ? "step 2, action " : "action UPDATE"));
    EXPECT_TRUE(fs::is_empty(path("disk")));
    const size_t done = steps_of(metrics).size();
    ASSERT_GT(done, 0u) << "the fault came before the first checkpoint";
    ASSERT_LT(done, steps_of(whole).size()) << "the fault never came";
    expect_success(pretrain(2, saving.with("--load " + ck)));
    expect_same_steps(steps_of(metrics), steps_of(whole));
  }
}

}  // namespace
}  // namespace ashlar::system_test
