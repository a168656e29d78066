// What the tests of whole programs share: a tiny model's flags, jobs under scripts/run_ranks.sh, metrics files.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/process.h"
#include "tests/support/scratch_dir.h"

namespace ashlar::system_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Flags of a program by name, so that a test can say what it changes. "--a 1 2 --b" gives a = "1 2", b = "".
class Flags {
 public:
  Flags(const std::string& text);  // NOLINT: text stands for flags everywhere

  Flags with(const std::string& text) const;  // replaces flags of the same name
  Flags without(const std::string& name) const;
  std::vector<std::string> words() const;
  std::string text() const;

 private:
  std::map<std::string, std::string> values_;
};

// 4 layers, width 32, 4 heads, 16 tokens; 4 micro-batches of 2 on one data rank; made-up data.
Flags tiny();
extern const char* const kGrid221;  // tensor 2 x pipeline 2
extern const char* const kGrid212;  // tensor 2
extern const char* const kGrid122;  // pipeline 2

// One line of a metrics file of kind "train".
struct StepLine {
  int64_t step = 0;
  nlohmann::json loss, grad_norm;  // a number, or the text "nan"
  std::vector<std::string> hashes;

  bool operator==(const StepLine&) const = default;
};
std::ostream& operator<<(std::ostream& out, const StepLine& line);

// Files under a directory, by relative path.
using Snapshot = std::map<std::string, std::string>;

class SystemTest : public testing::Test {
 protected:
  // Blocks the host. pretrain_gpt on so many ranks, in the test's own directory; one rank starts without mpirun.
  Ended pretrain(int num_ranks, const Flags& flags, const std::map<std::string, std::string>& environment = {});
  Command pretrain_command(int num_ranks, const Flags& flags,
                           const std::map<std::string, std::string>& environment = {}) const;
  Command program(const std::string& path, const std::vector<std::string>& words) const;
  // Blocks the host. Deterministic text as PREFIX_text_document.{idx,bin}; returns "PREFIX_text_document".
  std::string make_corpus(const std::string& prefix, size_t num_tokens, uint64_t seed = 1);

  std::string path(const std::string& name) const { return directory_ / name; }
  std::vector<StepLine> steps_of(const std::string& metrics_file) const;
  Snapshot snapshot(const std::string& name = ".") const;

  ScratchDir directory_;
  ScratchDir mpi_files_;  // where a killed job leaves Open MPI's shared memory
};

// It ended by itself, well.
void expect_success(const Ended& ended);
// It ended by itself with this code on all ranks, and said all of these texts, each line of error once.
void expect_error(const Ended& ended, ErrorCode code, const std::vector<std::string>& texts);
// It ended by itself and badly: how a job ends in which one rank died depends on mpirun.
void expect_bad_end(const Ended& ended);

// Lines of `resumed` are lines of `whole` to the last bit; both begin at step 1 unless `first` says otherwise.
void expect_same_steps(const std::vector<StepLine>& resumed, const std::vector<StepLine>& whole);

std::string join(const std::vector<std::string>& words);
int count(const std::string& text, const std::string& part);
// The number behind `before` in `text`, searched from the end; -1: not there.
int64_t number_behind(const std::string& text, const std::string& before);
double validation_loss(const Ended& ended);  // of the last "final validation loss" line

}  // namespace ashlar::system_test
