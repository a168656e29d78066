// Token files that are missing, damaged, foreign, too short, or not the same on all ranks.
#include <filesystem>
#include <fstream>

#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

namespace fs = std::filesystem;

class BadData : public SystemTest {
 protected:
  BadData() : corpus_(make_corpus("good", 2000)) {}

  Flags flags(const std::string& prefix) const { return tiny().without("mock-data").with("--data-path " + prefix); }
  void expect_refused(int num_ranks, const Flags& flags, const std::vector<std::string>& texts,
                      ErrorCode code = ErrorCode::kData) {
    SCOPED_TRACE(flags.text());
    const Snapshot before = snapshot();
    expect_error(pretrain(num_ranks, flags.with("--save out --metrics-file metrics.jsonl")), code, texts);
    EXPECT_EQ(snapshot(), before);
  }
  // A copy of the good pair in which the .idx (or .bin) was changed.
  std::string damaged(const std::string& name, const std::string& suffix,
                      const std::function<void(std::string&)>& change) {
    for (const char* part : {".idx", ".bin"}) {
      fs::copy_file(path(corpus_ + part), path(name + part), fs::copy_options::overwrite_existing);
    }
    std::string bytes = snapshot().at(name + suffix);
    change(bytes);
    std::ofstream(path(name + suffix), std::ios::binary) << bytes;
    return name;
  }

  std::string corpus_;
};

TEST_F(BadData, MissingFiles) {
  expect_refused(2, flags("nowhere"), {"--data-path nowhere", "nowhere.idx and nowhere.bin"});
  fs::copy_file(path(corpus_ + ".idx"), path("half.idx"));
  expect_refused(1, flags("half"), {"half.bin"});
}

TEST_F(BadData, DamagedAndForeignIndex) {
  expect_refused(2, flags(damaged("magic", ".idx", [](std::string& bytes) { bytes[0] = 'X'; })), {"magic.idx"});
  expect_refused(1, flags(damaged("version", ".idx", [](std::string& bytes) { bytes[9] = 2; })),
                 {"version.idx", "version"});
  expect_refused(1, flags(damaged("type", ".idx", [](std::string& bytes) { bytes[17] = 99; })), {"type.idx", "99"});
  expect_refused(1, flags(damaged("cut", ".idx", [](std::string& bytes) { bytes.resize(bytes.size() - 8); })),
                 {"cut.idx"});
  expect_refused(1, flags(damaged("empty", ".idx", [](std::string& bytes) { bytes.clear(); })), {"empty.idx"});
  expect_refused(1, flags(damaged("short", ".bin", [](std::string& bytes) { bytes.pop_back(); })), {"short.bin"});
}

TEST_F(BadData, TokensBeyondTheVocabulary) {
  // 16-bit ids; the first sample of sequential order meets the bad one in step 1.
  const std::string prefix = damaged("high", ".bin", [](std::string& bytes) {
    bytes[2 * 5] = 44;
    bytes[2 * 5 + 1] = 1;  // 300
  });
  const Ended ended = pretrain(2, flags(prefix).with("--data-order sequential --save out"));
  expect_bad_end(ended);
  EXPECT_EQ(ended.exit_code, exit_code(ErrorCode::kData));
  EXPECT_THAT(ended.err, AllOf(HasSubstr("high"), HasSubstr("300"), HasSubstr("257")));
  EXPECT_TRUE(snapshot("out").empty()) << "a checkpoint was written";
}

TEST_F(BadData, ShorterThanOneSequence) {
  const std::string prefix = make_corpus("short", 50);
  expect_refused(2, flags(prefix).with("--seq-length 4096"), {prefix, "4096"});
  expect_refused(1, flags(prefix).with("--seq-length 4096 --split 1,0,0"), {prefix, "4096"});
}

TEST_F(BadData, ValidationWithoutValidationData) {
  expect_refused(1, flags(corpus_).with("--split 1,0,0 --eval-interval 2"),
                 {"--eval-interval 2 needs validation data, and --split 1,0,0"}, ErrorCode::kUsage);
  expect_refused(1, flags(corpus_).with("--mock-data"), {"the data is given more than once"}, ErrorCode::kUsage);
}

// The same path with other bytes behind it, as on two hosts with disks of their own.
TEST_F(BadData, RanksWithDifferentFiles) {
  make_corpus("other", 2000, 2);
  fs::create_directories(path("a"));
  fs::create_directories(path("b"));
  for (const char* part : {".idx", ".bin"}) {
    fs::copy_file(path("good_text_document" + std::string(part)), path("a/data" + std::string(part)));
    fs::copy_file(path("other_text_document" + std::string(part)), path("b/data" + std::string(part)));
  }
  Command command = program("mpirun", {"--oversubscribe", "--bind-to", "none", "--quiet"});
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) {
    command.environment[name] = "1";
  }
  for (const char* folder : {"a", "b"}) {
    const std::vector<std::string> words = flags("data").with("--save " + path("out")).words();
    command.words.insert(command.words.end(), {"-np", "1", "-wdir", path(folder), PRETRAIN_GPT});
    command.words.insert(command.words.end(), words.begin(), words.end());
    command.words.push_back(":");
  }
  command.words.pop_back();
  expect_error(run_command(command), ErrorCode::kData,
               {"ranks see different data under --data-path", "on rank 0", "on rank 1"});
  EXPECT_FALSE(fs::exists(path("out")));
}

}  // namespace
}  // namespace ashlar::system_test
