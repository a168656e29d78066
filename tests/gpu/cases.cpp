// The case lists of tests/emulation, linked into this program and run by its test framework.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/gpu/gpu_timer.h"
#include "tests/gpu/steps.h"

namespace ashlar {
namespace {

// Tells the report of what failed, counts by suite, and prints nothing of what is well.
class Listener final : public testing::EmptyTestEventListener {
 public:
  explicit Listener(StepReport& report) : report_(report) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) {
      fmt::print("{}:{}: {}\n", result.file_name() == nullptr ? "" : result.file_name(), result.line_number(),
                 result.message());
    }
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (test.result()->Failed()) {
      report_.fail(fmt::format("{}.{}", test.test_suite_name(), test.name()));
    }
  }
  void OnTestSuiteEnd(const testing::TestSuite& suite) override {
    report_.add({suite.name(), Cell(suite.successful_test_count(), 0), Cell(suite.failed_test_count(), 0),
                 Cell(static_cast<double>(suite.elapsed_time()) * 1e-3, 2)});
  }

 private:
  StepReport& report_;
};

}  // namespace

void check_cases(const std::string& filter, StepReport& report) {
  testing::FLAGS_gtest_filter = filter;
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new Listener(report));  // the framework owns it
  report.begin("cases " + filter + ", each run twice for its bits", {"suite", "passed", "failed", "seconds"});
  // Its value counts failures, which the listener has told of one by one.
  if (RUN_ALL_TESTS() != 0 && report.passed()) {
    report.fail("the test framework failed outside of its cases");
  }
  if (testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
    report.fail("no case has such a name");
  }
}

}  // namespace ashlar
