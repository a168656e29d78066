// Saves that end early: at whatever point, the checkpoint before stays the one that is found and loads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "tests/runtime/checkpoint/fake_model.h"
#include "tests/support/scratch_dir.h"

namespace ashlar {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kNumRanks = 2;
constexpr int kEveryRank = -1;

// What a save came to on all ranks: empty, or the message that all of them threw.
std::string save(const fs::path& directory, int64_t iteration, uint64_t contents, const StorageOptions& fault = {},
                 int failing_rank = kEveryRank) {
  std::mutex mutex;
  std::vector<std::string> messages;
  run_thread_ranks(kNumRanks, [&](RankContext& rank) {
    FakeModel model(rank.world.rank(), kNumRanks);
    model.fill(contents);
    StorageOptions mine = fault;
    if (failing_rank != kEveryRank && failing_rank != rank.world.rank()) {
      mine.fail_after = -1;
    }
    try {
      save_checkpoint(rank, {directory.string(), iteration, model.slices(), mine}, {{"contents", contents}});
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(), ErrorCode::kCheckpoint);
      const std::lock_guard lock(mutex);
      messages.emplace_back(problem.what());
    }
  });
  if (messages.empty()) {
    return "";
  }
  EXPECT_EQ(messages.size(), static_cast<size_t>(kNumRanks)) << "only some ranks threw";
  return messages.front();
}

struct Found {
  std::optional<int64_t> iteration;
  uint64_t contents = 0;  // of the state; the tensors were found to agree with it
};

// What a job that starts now goes on from.
Found resume(const fs::path& directory) {
  Found found;
  run_thread_ranks(kNumRanks, [&](RankContext& rank) {
    const std::optional<int64_t> iteration = find_checkpoint(rank, directory.string());
    uint64_t contents = 0;
    if (iteration) {
      FakeModel model(rank.world.rank(), kNumRanks);
      model.scribble();
      contents = load_checkpoint(rank, directory.string(), *iteration, model.slices()).at("contents").get<uint64_t>();
      EXPECT_EQ(model.difference(contents), "");
    }
    if (rank.world.rank() == 0) {
      found = {iteration, contents};
    }
  });
  return found;
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

// Steps the fault over the whole save: coarsely through the bytes, then one by one through the last steps, where single
// renames matter. `attempt` saves into a fresh copy of `base`, with the fault, and returns whether the save succeeded.
void step_through(const std::function<bool(int64_t)>& attempt) {
  int64_t enough = 64;
  while (!attempt(enough)) {
    ASSERT_LT(enough, int64_t{1} << 30);
    enough *= 2;
  }
  int64_t too_few = enough / 2;
  while (enough - too_few > 1) {
    const int64_t middle = (enough + too_few) / 2;
    (attempt(middle) ? enough : too_few) = middle;
  }
  for (int64_t k = 0; k < enough; k += k < enough - 200 ? 499 : (k < enough - 24 ? 23 : 1)) {
    EXPECT_FALSE(attempt(k)) << k;
  }
  for (int64_t k = enough; k < enough + 6; ++k) {
    EXPECT_TRUE(attempt(k)) << k;
  }
}

class SaveFaults : public testing::TestWithParam<int> {
 protected:
  SaveFaults() {
    EXPECT_EQ(save(base(), 10, 1), "");
    EXPECT_EQ(save(base(), 20, 2), "");
  }
  fs::path base() const { return scratch_ / "base"; }
  fs::path fresh_copy() const {
    fs::remove_all(scratch_ / "copy");
    fs::copy(base(), scratch_ / "copy", fs::copy_options::recursive);
    return scratch_ / "copy";
  }
  ScratchDir scratch_;
};

// Nothing is cleaned up behind a killed job, and the next one needs no help.
TEST_P(SaveFaults, KilledAnywhereWhileSaving) {
  const int failing_rank = GetParam();
  step_through([&](int64_t k) {
    const fs::path directory = fresh_copy();
    const bool saved = save(directory, 30, 3, {.fail_after = k, .leave_files = true}, failing_rank).empty();
    const Found found = resume(directory);
    EXPECT_EQ(found.iteration, saved ? 30 : 20) << k;
    EXPECT_EQ(found.contents, saved ? 3U : 2U) << k;
    EXPECT_EQ(save(directory, 30, 4), "") << k;
    EXPECT_EQ(resume(directory).contents, 4U) << k;
    EXPECT_THAT(names_in(directory), testing::UnorderedElementsAre("iter_0000010", "iter_0000020", "iter_0000030",
                                                                   "latest_checkpointed_iteration.txt"))
        << k;
    return saved;
  });
}

// A job that went back writes an iteration that exists already: the old set or the new one is there, never neither.
TEST_P(SaveFaults, KilledAnywhereWhileReplacing) {
  const int failing_rank = GetParam();
  step_through([&](int64_t k) {
    const fs::path directory = fresh_copy();
    const bool saved = save(directory, 20, 3, {.fail_after = k, .leave_files = true}, failing_rank).empty();
    const Found found = resume(directory);
    EXPECT_EQ(found.iteration, 20) << k;
    EXPECT_TRUE(found.contents == 3 || (found.contents == 2 && !saved)) << k << ": " << found.contents;
    EXPECT_EQ(save(directory, 30, 4), "") << k;
    EXPECT_THAT(names_in(directory), testing::UnorderedElementsAre("iter_0000010", "iter_0000020", "iter_0000030",
                                                                   "latest_checkpointed_iteration.txt"))
        << k;
    return saved;
  });
}

TEST_P(SaveFaults, DiskFullAnywhere) {
  const int failing_rank = GetParam();
  for (const int64_t iteration : {20, 30}) {
    step_through([&](int64_t k) {
      const fs::path directory = fresh_copy();
      const std::string message = save(directory, iteration, 3, {.fail_after = k}, failing_rank);
      if (message.empty()) {
        return true;
      }
      EXPECT_THAT(message, AllOf(HasSubstr(directory.string()), HasSubstr("needed"), HasSubstr("free"),
                                 HasSubstr("No space left on device (as a test asked for; the disk did not fail)")));
      EXPECT_THAT(names_in(directory),
                  testing::UnorderedElementsAre("iter_0000010", "iter_0000020", "latest_checkpointed_iteration.txt"))
          << k;
      EXPECT_EQ(resume(directory).contents, 2U) << k;
      return false;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(FailingRank, SaveFaults, testing::Values(0, 1, kEveryRank), [](const auto& which) {
  return which.param == kEveryRank ? std::string("all") : fmt::format("rank{}", which.param);
});

TEST(SaveFaultsOfTheSystem, FileSizeLimit) {
  ScratchDir scratch;
  ASSERT_EQ(save(scratch.path(), 1, 1), "");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit tight{600, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string message = save(scratch.path(), 2, 2);  // SIGXFSZ, left at its default here, would end this process
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(message, AllOf(HasSubstr("File too large"), HasSubstr("ulimit -f"), HasSubstr("600 bytes")));
  const Found found = resume(scratch.path());
  EXPECT_EQ(found.iteration, 1);
  EXPECT_EQ(found.contents, 1U);
}

TEST(SaveFaultsOfTheSystem, AnotherJobInTheSameDirectory) {
  ScratchDir scratch;
  Storage storage;
  const fs::path gone = scratch / ".iter_0000001.tmp";
  const std::vector<std::function<void()>> uses = {[&] { storage.write_file(gone / "manifest.json", "{}"); },
                                                   [&] { storage.sync_directory(gone); },
                                                   [&] { storage.rename(gone, scratch / "iter_0000001"); }};
  for (const auto& use : uses) {
    try {
      use();
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(scratch.path().string()), HasSubstr("No such file or directory"),
                        HasSubstr("another job may be writing into this directory"), Not(HasSubstr("bytes"))));
    }
  }
}

// A small tmpfs, where this user may mount one.
class SmallDisk : public testing::Test {
 protected:
  void SetUp() override {
    mounted_ = ::mount("tmpfs", scratch_.path().c_str(), "tmpfs", 0, "size=128k") == 0;
    if (!mounted_) {
      GTEST_SKIP() << "mounting a tmpfs takes root";
    }
  }
  ~SmallDisk() override {
    if (mounted_) {
      ::umount2(scratch_.path().c_str(), MNT_DETACH);
    }
  }
  bool mounted_ = false;
  ScratchDir scratch_;
};

TEST_F(SmallDisk, FullForReal) {
  std::string message;
  int64_t iteration = 0;
  while (message.empty()) {
    ++iteration;
    ASSERT_LT(iteration, 50);
    message = save(scratch_.path(), iteration, static_cast<uint64_t>(iteration));
  }
  ASSERT_GT(iteration, 1);
  EXPECT_THAT(message, AllOf(HasSubstr(scratch_.path().string()), HasSubstr("No space left"), HasSubstr("free"),
                             Not(HasSubstr("as a test asked for"))));
  const Found found = resume(scratch_.path());
  EXPECT_EQ(found.iteration, iteration - 1);
  EXPECT_EQ(found.contents, static_cast<uint64_t>(iteration - 1));
  fs::remove_all(scratch_ / "iter_0000001");  // the user makes room; nothing else has to be cleared away
  EXPECT_EQ(save(scratch_.path(), iteration, 77), "");
  EXPECT_EQ(resume(scratch_.path()).contents, 77U);
}

TEST_F(SmallDisk, ReadOnly) {
  ASSERT_EQ(save(scratch_.path(), 1, 1), "");
  ASSERT_EQ(::mount("tmpfs", scratch_.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_THAT(save(scratch_.path(), 2, 2), AllOf(HasSubstr(scratch_.path().string()), HasSubstr("Read-only")));
  EXPECT_EQ(resume(scratch_.path()).contents, 1U);
}

}  // namespace
}  // namespace ashlar
