// Included once by a test program that runs on the stand-in: every test that leaves a report, a stream, an event or a
// buffer behind fails. A test that provokes reports takes them itself.
#pragma once

#include <gtest/gtest.h>

#include "tests/emulation/standins/cudart/standin.h"

namespace ashlar::standin {

class CleanExit final : public testing::EmptyTestEventListener {
  void OnTestProgramStart(const testing::UnitTest&) override { reset(); }  // whatever machine the environment plays
  void OnTestEnd(const testing::TestInfo&) override {
    for (const std::string& report : take_reports()) {
      ADD_FAILURE() << "the stand-in reports: " << report;
    }
    for (const std::string& leak : leaks()) {
      ADD_FAILURE() << "left behind: " << leak;
    }
    reset();
  }
};

inline const bool kCleanExitListens = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new CleanExit);
  return true;
}();

}  // namespace ashlar::standin
