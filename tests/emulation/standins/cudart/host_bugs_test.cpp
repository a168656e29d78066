// Mistakes that host code makes with streams, planted one by one in a small transfer pipeline, each of which must be
// found; the pipeline without one must run clean whatever the delays.
#include <gmock/gmock.h>

#include <algorithm>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/device/cuda/cuda_device.h"
#include "tests/emulation/standins/cudart/clean_exit.h"

namespace ashlar {
namespace {

using standin::Config;
using standin::Delays;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

enum class Bug {
  kNone,
  kNoWaitAfterWrite,    // the reader does not wait for the writer
  kNoWaitAfterRead,     // the next write does not wait for the reader
  kRecordBeforeWrite,   // the event is recorded before the copy it stands for
  kNoHostWait,          // the host reads what has not arrived
  kSourceOverwritten,   // the host refills a buffer that is still being copied from
  kFreedInUse,          // a buffer goes while a stream works on it
  kUsedAfterFree,       // a pointer outlives its buffer
  kCopyOverrun,         // one element too many
  kPageableHostMemory,  // a copy that makes the host wait
  kForeignEvent,        // an event of another device
};

struct Outcome {
  int wrong_values = 0;
  std::string error;  // the first Error
  std::vector<std::string> reports;
};

// Not instrumented: the planted races of the host with a copy are found by their values, not by ThreadSanitizer.
__attribute__((no_sanitize("thread"))) int read_int(const volatile int* place) {
  return *place;
}
__attribute__((no_sanitize("thread"))) void write_ints(volatile int* place, int value, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    place[i] = value;
  }
}

constexpr size_t kCount = 64;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kNumRounds = 6;

// Each round: host -> x on one stream, x -> y -> host on another; the host looks at what came back one round late, so
// that nothing but events orders the streams.
void run_pipeline(Bug bug, Outcome& outcome) {
  const auto device = make_cuda_device(0);
  const auto other_device = make_cuda_device(1);
  const Buffer in = device->allocate_host(kNumRounds * kBytes, "in");
  const Buffer out = device->allocate_host(kNumRounds * kBytes, "out");
  const Buffer x = device->allocate(kBytes, "x");
  Buffer y = device->allocate(kBytes, "y");
  const auto writer = device->create_stream(), reader = device->create_stream(StreamPriority::kCommunication);
  const auto written = device->create_event(), read = device->create_event();
  const std::unique_ptr<Event> arrived[] = {device->create_event(), device->create_event()};
  const auto foreign = other_device->create_event();
  std::vector<int> pageable(kCount);

  const auto look_at = [&](int round) {
    if (bug != Bug::kNoHostWait) {
      arrived[round % 2]->synchronize();
    }
    const int* const row = reinterpret_cast<const int*>(out.data() + static_cast<size_t>(round) * kBytes);
    for (size_t i = 0; i < kCount; ++i) {
      outcome.wrong_values += read_int(row + i) == round + 1 ? 0 : 1;
    }
  };
  for (int round = 0; round < kNumRounds; ++round) {
    std::byte* const in_row = in.data() + static_cast<size_t>(round) * kBytes;
    write_ints(reinterpret_cast<int*>(in_row), round + 1, kCount);
    if (bug != Bug::kNoWaitAfterRead) {
      writer->wait(*read);
    }
    if (bug == Bug::kRecordBeforeWrite) {
      writer->record(*written);
    }
    writer->copy(x.data(), bug == Bug::kPageableHostMemory ? static_cast<void*>(pageable.data()) : in_row,
                 bug == Bug::kCopyOverrun ? kBytes + sizeof(int) : kBytes);
    if (bug != Bug::kRecordBeforeWrite) {
      writer->record(bug == Bug::kForeignEvent ? *foreign : *written);
    }
    if (bug == Bug::kSourceOverwritten) {
      write_ints(reinterpret_cast<int*>(in_row), -1, kCount);
    }
    if (bug != Bug::kNoWaitAfterWrite) {
      reader->wait(*written);
    }
    reader->copy(y.data(), x.data(), kBytes);
    reader->record(*read);
    reader->copy(out.data() + static_cast<size_t>(round) * kBytes, y.data(), kBytes);
    reader->record(*arrived[round % 2]);
    if (bug == Bug::kFreedInUse) {
      y = device->allocate(kBytes, "y again");
    }
    if (bug == Bug::kUsedAfterFree) {
      std::byte* const old_y = y.data();
      reader->synchronize();
      y = device->allocate(kBytes, "y again");
      reader->copy(old_y, x.data(), kBytes);
    }
    if (round > 0) {
      look_at(round - 1);
    }
  }
  look_at(kNumRounds - 1);
  writer->synchronize();
  reader->synchronize();
}

Outcome run(Bug bug, Config config) {
  standin::reset(config);
  Outcome outcome;
  testing::internal::CaptureStderr();  // destructors after a fault have their say there
  try {
    run_pipeline(bug, outcome);
  } catch (const Error& error) {
    outcome.error = error.what();
  }
  testing::internal::GetCapturedStderr();
  outcome.reports = standin::take_reports();
  return outcome;
}

Config with(uint64_t seed, Delays delays) {
  Config config;
  config.seed = seed;
  config.delays = delays;
  return config;
}

TEST(HostBugs, TheCorrectPipelineRunsCleanWith50Seeds) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const Outcome outcome = run(Bug::kNone, with(seed, Delays::kRandom));
    ASSERT_EQ(outcome.wrong_values, 0) << "seed " << seed;
    ASSERT_EQ(outcome.error, "") << "seed " << seed;
    ASSERT_THAT(outcome.reports, IsEmpty()) << "seed " << seed;
  }
}

TEST(HostBugs, TheCorrectPipelineRunsCleanAtOnceAndLate) {
  for (const Delays delays : {Delays::kNone, Delays::kLate}) {
    const Outcome outcome = run(Bug::kNone, with(1, delays));
    EXPECT_EQ(outcome.wrong_values, 0);
    EXPECT_EQ(outcome.error, "");
    EXPECT_THAT(outcome.reports, IsEmpty());
  }
}

struct Expected {
  Bug bug;
  std::string name;
  testing::Matcher<std::string> report;  // of the first report, and of the error that ends the program
};

void PrintTo(const Expected& expected, std::ostream* out) {
  *out << expected.name;
}

class OrderBugs : public testing::TestWithParam<Expected> {};

// Found whatever the delays: by the order of the calls, not by luck.
TEST_P(OrderBugs, AreReportedWithTheOperation) {
  for (const Delays delays : {Delays::kNone, Delays::kRandom, Delays::kLate}) {
    for (uint64_t seed = 1; seed <= (delays == Delays::kRandom ? 8u : 1u); ++seed) {
      const Outcome outcome = run(GetParam().bug, with(seed, delays));
      ASSERT_FALSE(outcome.reports.empty()) << "seed " << seed;
      EXPECT_THAT(outcome.reports.front(), GetParam().report) << "seed " << seed;
      EXPECT_THAT(outcome.error, AllOf(HasSubstr("CUDA device 0"), GetParam().report)) << "seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, OrderBugs,
    testing::Values(
        // Of the two operations the one that ran later is reported first.
        Expected{Bug::kNoWaitAfterWrite, "NoWaitAfterWrite",
                 AllOf(HasSubstr("missing wait: cudaMemcpyAsync of 256 bytes"),
                       AnyOf(HasSubstr("reads device buffer #3 at byte 0, which cudaMemcpyAsync of 256 bytes"),
                             HasSubstr("writes device buffer #3 at byte 0, which cudaMemcpyAsync of 256 bytes")),
                       HasSubstr("on stream 0"), HasSubstr("on stream 1"), HasSubstr("no event"))},
        Expected{Bug::kNoWaitAfterRead, "NoWaitAfterRead",
                 AllOf(HasSubstr("missing wait: cudaMemcpyAsync of 256 bytes"), HasSubstr("device buffer #3"),
                       HasSubstr("on stream 0"), HasSubstr("on stream 1"))},
        Expected{Bug::kRecordBeforeWrite, "RecordBeforeWrite",
                 AllOf(HasSubstr("missing wait: cudaMemcpyAsync of 256 bytes"), HasSubstr("device buffer #3"))},
        Expected{Bug::kFreedInUse, "FreedInUse",
                 AllOf(HasSubstr("cudaFree: device buffer #4 is freed although the host has not waited for "
                                 "cudaMemcpyAsync of 256 bytes"))},
        Expected{Bug::kUsedAfterFree, "UsedAfterFree",
                 AllOf(HasSubstr("cudaMemcpyAsync of 256 bytes to device buffer #4, which was freed"))},
        Expected{Bug::kCopyOverrun, "CopyOverrun",
                 AllOf(HasSubstr("cudaMemcpyAsync of 260 bytes"), HasSubstr("4 bytes beyond its end"))},
        Expected{Bug::kPageableHostMemory, "PageableHostMemory",
                 HasSubstr("from memory that is neither on a device nor pinned")},
        Expected{Bug::kForeignEvent, "ForeignEvent",
                 HasSubstr("cudaEventRecord: event and stream are of different devices")}),
    [](const testing::TestParamInfo<Expected>& expected) { return expected.param.name; });

// The stand-in does not see what the host reads and writes; running late shows it in the values.
TEST(HostBugs, AMissingHostWaitGivesWrongValues) {
  for (const Bug bug : {Bug::kNoHostWait, Bug::kSourceOverwritten}) {
    const Outcome outcome = run(bug, with(1, Delays::kLate));
    EXPECT_GT(outcome.wrong_values, 0);
    EXPECT_THAT(outcome.reports, IsEmpty());
  }
}

// Not only the check: without it the values are wrong.
TEST(HostBugs, AMissingWaitGivesWrongValuesToo) {
  for (const Bug bug : {Bug::kNoWaitAfterWrite, Bug::kRecordBeforeWrite}) {
    Config config = with(1, Delays::kLate);
    config.check_order = false;
    const Outcome outcome = run(bug, config);
    EXPECT_GT(outcome.wrong_values, 0);
    EXPECT_THAT(outcome.reports, IsEmpty());
  }
}

TEST(HostBugs, OutOfMemoryAtTheStart) {
  Config config;
  config.devices[0].memory_bytes = kBytes + 10;
  const Outcome outcome = run(Bug::kNone, config);
  EXPECT_THAT(outcome.error, AllOf(HasSubstr("out of memory: y needs 256 bytes more than the 256 already held")));
  EXPECT_THAT(outcome.reports, IsEmpty());  // no mistake of the program
}

}  // namespace
}  // namespace ashlar
