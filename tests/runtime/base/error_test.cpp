#include "runtime/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/log.h"

namespace ashlar {
namespace {

TEST(Error, ExitCodesAreThePublishedOnes) {
  EXPECT_EQ(exit_code(ErrorCode::kUsage), 2);
  EXPECT_EQ(exit_code(ErrorCode::kData), 3);
  EXPECT_EQ(exit_code(ErrorCode::kCheckpoint), 4);
  EXPECT_EQ(exit_code(ErrorCode::kCommunication), 5);
  EXPECT_EQ(exit_code(ErrorCode::kTimeout), 5);
  EXPECT_EQ(exit_code(ErrorCode::kNumerics), 6);
  EXPECT_EQ(exit_code(ErrorCode::kInternal), 70);
}

TEST(Error, RequireCarriesCodeMessageAndPlace) {
  int line = 0;
  try {
    line = __LINE__ + 1;
    REQUIRE(1 + 1 == 3, ErrorCode::kData, "--data-path {}: {} tokens", "a.bin", 7);
    FAIL() << "REQUIRE did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kData);
    EXPECT_STREQ(error.what(), "--data-path a.bin: 7 tokens");
    EXPECT_EQ(error.place_text(), fmt::format("tests/runtime/base/error_test.cpp:{}", line));
  }
}

TEST(Error, ChecksEvaluateOnceAndPassSilently) {
  int calls = 0;
  REQUIRE(++calls == 1, ErrorCode::kUsage, "unused");
  DCHECK(++calls == 2, "unused");
  EXPECT_EQ(calls, 2);
}

TEST(Error, DcheckIsAnInternalErrorThatQuotesTheCondition) {
  try {
    DCHECK(2 < 1, "{} of {}", 5, 4);
    FAIL() << "DCHECK did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_STREQ(error.what(), "internal check failed: 2 < 1: 5 of 4");
  }
}

TEST(Log, LinesCarryWhoSpeaksAndTheLevel) {
  testing::internal::CaptureStderr();
  Log log("rank 3");
  log.info("{} braces {{}} 100%", 1);
  log.debug("not shown");
  log.set_who("rank 3 t1 p0 d1");
  log.warning("second");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::HasSubstr("[rank 3] [info] 1 braces {} 100%\n"));
  EXPECT_THAT(text, testing::HasSubstr("[rank 3 t1 p0 d1] [warning] second\n"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("not shown")));
}

}  // namespace
}  // namespace ashlar
