#include "runtime/disk/async_file.h"

#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <cstring>
#include <deque>
#include <vector>

#include "runtime/base/rng.h"
#include "runtime/disk/disk_error.h"
#include "tests/support/scratch_dir.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr size_t kBlock = AsyncFile::kAlignment;

struct Memory {
  explicit Memory(size_t size)
      : bytes(size), data(static_cast<std::byte*>(std::aligned_alloc(AsyncFile::kAlignment, size))) {}
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void fill(uint64_t seed) {
    for (size_t at = 0; at < bytes; ++at) {
      data[at] = static_cast<std::byte>((at * 2654435761u + seed * 97 + at / 4096) >> 3);
    }
  }
  bool operator==(const Memory& other) const { return std::memcmp(data, other.data, bytes) == 0; }
  size_t bytes;
  std::byte* data;
};

std::unique_ptr<IoQueue> open_queue(bool plain) {
  return plain ? make_plain_queue("asked for by a test") : open_io_queue();
}

// Every piece moves at most so many bytes at once.
class ShortQueue final : public IoQueue {
 public:
  ShortQueue(std::unique_ptr<IoQueue> queue, size_t most) : queue_(std::move(queue)), most_(most) {}
  std::string name() const override { return "short"; }
  void put(const IoPiece& piece) override {
    IoPiece part = piece;
    part.bytes = std::min(part.bytes, most_);
    queue_->put(part);
  }
  void flush() override { queue_->flush(); }
  std::optional<IoDone> take(double seconds) override { return queue_->take(seconds); }

 private:
  std::unique_ptr<IoQueue> queue_;
  size_t most_;
};

// Never answers.
class DeadQueue final : public IoQueue {
 public:
  std::string name() const override { return "dead"; }
  void put(const IoPiece&) override {}
  void flush() override {}
  std::optional<IoDone> take(double) override { return std::nullopt; }
};

// Answers as told, whatever is asked.
class ScriptedQueue final : public IoQueue {
 public:
  explicit ScriptedQueue(std::deque<int64_t> results) : results_(std::move(results)) {}
  std::string name() const override { return "scripted"; }
  void put(const IoPiece& piece) override { tags_.push_back(piece.tag); }
  void flush() override {}
  std::optional<IoDone> take(double) override {
    if (tags_.empty() || results_.empty()) {
      return std::nullopt;
    }
    const IoDone done{tags_.front(), results_.front()};
    tags_.pop_front();
    results_.pop_front();
    return done;
  }

 private:
  std::deque<int64_t> results_;
  std::deque<uint64_t> tags_;
};

std::string error_of(const std::function<void()>& body, ErrorCode code = ErrorCode::kCheckpoint) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

class AsyncFileTest : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<IoQueue> queue() const { return open_queue(GetParam()); }
  ScratchDir scratch_;
};

TEST_P(AsyncFileTest, WhatWasWrittenIsRead) {
  const size_t chunk = 3 * kBlock + (size_t{2} << 20);  // several pieces, the last one short
  AsyncFile file(scratch_.path(), 4 * chunk, queue());
  std::vector<std::unique_ptr<Memory>> written, read;
  std::vector<AsyncFile::Request> requests;
  for (size_t at = 0; at < 4; ++at) {
    written.push_back(std::make_unique<Memory>(chunk));
    written.back()->fill(at);
    requests.push_back(file.start_write((3 - at) * chunk, written.back()->data, chunk));
  }
  for (const AsyncFile::Request request : requests) {
    file.wait(request);
  }
  requests.clear();
  for (size_t at = 0; at < 4; ++at) {
    read.push_back(std::make_unique<Memory>(chunk));
    requests.push_back(file.start_read((3 - at) * chunk, read.back()->data, chunk));
  }
  for (size_t at = 4; at-- > 0;) {  // in another order than they were started in
    file.wait(requests[at]);
    EXPECT_TRUE(*read[at] == *written[at]) << at;
  }
}

TEST_P(AsyncFileTest, StartsWithZeros) {
  AsyncFile file(scratch_.path(), 8 * kBlock, queue());
  Memory zeros(8 * kBlock), read(8 * kBlock);
  std::memset(zeros.data, 0, zeros.bytes);
  read.fill(1);
  file.wait(file.start_read(0, read.data, read.bytes));
  EXPECT_TRUE(read == zeros);
}

// More pieces than the queue holds, and more requests than the file counts at once.
TEST_P(AsyncFileTest, MoreThanFitsIsStillDone) {
  constexpr size_t kRequests = 300;
  AsyncFile file(scratch_.path(), kRequests * kBlock, queue());
  Memory written(kRequests * kBlock), read(kRequests * kBlock);
  written.fill(7);
  std::vector<AsyncFile::Request> requests;
  for (size_t at = 0; at < kRequests; ++at) {
    requests.push_back(file.start_write(at * kBlock, written.data + at * kBlock, kBlock));
  }
  for (const AsyncFile::Request request : requests) {
    file.wait(request);
  }
  file.wait(file.start_read(0, read.data, read.bytes));
  EXPECT_TRUE(read == written);
}

TEST_P(AsyncFileTest, PiecesThatMoveOnlyInPartGoOn) {
  const size_t bytes = (size_t{1} << 20) + 5 * kBlock;
  AsyncFile file(scratch_.path(), bytes, std::make_unique<ShortQueue>(queue(), 3 * kBlock));
  Memory written(bytes), read(bytes);
  written.fill(3);
  file.wait(file.start_write(0, written.data, bytes));
  file.wait(file.start_read(0, read.data, bytes));
  EXPECT_TRUE(read == written);
}

TEST_P(AsyncFileTest, LeavesNoName) {
  const AsyncFile file(scratch_.path(), kBlock, queue());
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
  EXPECT_EQ(file.path().parent_path(), scratch_.path());
}

TEST_P(AsyncFileTest, CloseWaitsForWhatIsUnderWay) {
  Memory written(64 * kBlock);
  written.fill(1);
  AsyncFile file(scratch_.path(), written.bytes, queue());
  file.start_write(0, written.data, written.bytes);
}

TEST_P(AsyncFileTest, FullDiskNamesPathOffsetAndBytesAndStays) {
  const int64_t good = (int64_t{1} << 20) + 2 * static_cast<int64_t>(kBlock);
  Memory memory(4 << 20);
  memory.fill(1);
  AsyncFile file(scratch_.path(), memory.bytes, make_faulty_queue(queue(), {.fail_after = good}));
  file.wait(file.start_write(0, memory.data, size_t{1} << 20));
  const AsyncFile::Request bad = file.start_write(1 << 20, memory.data, size_t{1} << 20);
  const std::string text = error_of([&] { file.wait(bad); });
  EXPECT_THAT(text, AllOf(HasSubstr(file.path().string()), HasSubstr("offset 1048576"),
                          HasSubstr("needed 4194304 bytes"), HasSubstr("free "),
                          HasSubstr("No space left on device (as a test asked for; the disk did not fail)")));
  EXPECT_EQ(error_of([&] { file.start_read(0, memory.data, kBlock); }), text);
  EXPECT_EQ(error_of([&] { file.wait(bad); }), text);
}

TEST_P(AsyncFileTest, DirectoryThatIsNoneIsRefused) {
  EXPECT_THAT(error_of([&] { AsyncFile(scratch_ / "absent", kBlock, queue()); }),
              AllOf(HasSubstr("absent"), HasSubstr("No such file")));
}

// Space is taken at the start: a disk that is too small is found before the first write.
TEST_P(AsyncFileTest, DiskThatIsTooSmallIsFoundAtTheStart) {
  if (::mount("none", scratch_.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "this user may not mount a small disk";
  }
  const std::string text = error_of([&] { AsyncFile(scratch_.path(), 2 << 20, queue()); });
  EXPECT_THAT(text, AllOf(HasSubstr("cannot reserve space"), HasSubstr("No space left"), HasSubstr("needed 2097152"),
                          HasSubstr("free 1048576"), Not(HasSubstr("as a test asked for"))));
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
  { const AsyncFile fits(scratch_.path(), 1 << 20, queue()); }
  EXPECT_EQ(free_bytes(scratch_.path()), 1u << 20) << "a closed file takes no space";
  ::umount(scratch_.path().c_str());
}

TEST_P(AsyncFileTest, LimitOfTheShellIsAnErrorNotASignal) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1 << 20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string text = error_of([&] { AsyncFile(scratch_.path(), 2 << 20, queue()); });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(text, HasSubstr("ulimit -f allows 1048576"));
}

INSTANTIATE_TEST_SUITE_P(Queues, AsyncFileTest, testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "plain" : "best"); });

TEST(AsyncFile, DeadDiskEndsTheWaitAtTheDeadline) {
  const ScratchDir scratch;
  int asked = 0;
  Memory memory(kBlock);
  AsyncFile file(scratch.path(), kBlock, std::make_unique<DeadQueue>(),
                 {.deadline_seconds = 0.01, .keep_waiting = [&] { ++asked; }});
  EXPECT_THAT(error_of([&] { file.wait(file.start_read(0, memory.data, kBlock)); }, ErrorCode::kTimeout),
              HasSubstr("--distributed-timeout-minutes"));
  EXPECT_GT(asked, 0);
}

TEST(AsyncFile, WaitEndsWhenTheCallerSaysSo) {
  const ScratchDir scratch;
  Memory memory(kBlock);
  AsyncFile file(
      scratch.path(), kBlock, std::make_unique<DeadQueue>(),
      {.deadline_seconds = 0.05, .keep_waiting = [] { throw Error(ErrorCode::kCommunication, "the job was ended"); }});
  EXPECT_EQ(error_of([&] { file.wait(file.start_read(0, memory.data, kBlock)); }, ErrorCode::kCommunication),
            "the job was ended");
}

TEST(AsyncFile, InterruptedPiecesAreTriedAgainAndCutFilesAreErrors) {
  const ScratchDir scratch;
  Memory memory(kBlock);
  AsyncFile file(scratch.path(), kBlock,
                 std::make_unique<ScriptedQueue>(std::deque<int64_t>{-EINTR, -EAGAIN, kBlock, 0}));
  file.wait(file.start_write(0, memory.data, kBlock));
  EXPECT_THAT(error_of([&] { file.wait(file.start_read(0, memory.data, kBlock)); }), HasSubstr("cannot read 4096"));
}

TEST(IoQueue, BestOfThisMachineHasAName) {
  const ScratchDir scratch;
  const AsyncFile file(scratch.path(), kBlock, open_io_queue());
  RecordProperty("how", file.how());
  EXPECT_THAT(file.how(), testing::AnyOf(HasSubstr("io_uring, "), HasSubstr("piece by piece")));
}

}  // namespace
}  // namespace ashlar
