#include "tests/system/system_test.h"

#include <fstream>
#include <sstream>

namespace ashlar::system_test {

namespace fs = std::filesystem;

const char* const kGrid221 = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2";
const char* const kGrid212 = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1";
const char* const kGrid122 = "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 2";

namespace {

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) {
    words.push_back(word);
  }
  return words;
}

}  // namespace

Flags::Flags(const std::string& text) {
  std::string name;
  for (const std::string& word : split_words(text)) {
    if (word.starts_with("--")) {
      name = word.substr(2);
      values_[name] = "";
    } else {
      std::string& value = values_.at(name);
      value += (value.empty() ? "" : " ") + word;
    }
  }
}

Flags Flags::with(const std::string& text) const {
  Flags flags = *this;
  for (const auto& [name, value] : Flags(text).values_) {
    flags.values_[name] = value;
  }
  return flags;
}

Flags Flags::without(const std::string& name) const {
  Flags flags = *this;
  flags.values_.erase(name);
  return flags;
}

std::vector<std::string> Flags::words() const {
  return split_words(text());
}

std::string Flags::text() const {
  std::string text;
  for (const auto& [name, value] : values_) {
    text += "--" + name + " " + value + " ";
  }
  return text;
}

Flags tiny() {
  return Flags(
      "--mock-data --num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --micro-batch-size 2 "
      "--global-batch-size 8 --train-iters 6 --lr 1e-2 --log-interval 1");
}

std::ostream& operator<<(std::ostream& out, const StepLine& line) {
  return out << "step " << line.step << ", loss " << line.loss << ", norm " << line.grad_norm << ", hashes "
             << join(line.hashes);
}

Command SystemTest::program(const std::string& path, const std::vector<std::string>& words) const {
  const std::string mpi_files = mpi_files_.path();
  Command command{.words = {path},
                  .environment = {{"OMP_NUM_THREADS", "1"},
                                  {"TMPDIR", mpi_files},
                                  {"OMPI_MCA_btl_vader_backing_directory", mpi_files},
                                  {"OMPI_MCA_osc_sm_backing_directory", mpi_files}},
                  .directory = directory_.path()};
  command.words.insert(command.words.end(), words.begin(), words.end());
  return command;
}

Command SystemTest::pretrain_command(int num_ranks, const Flags& flags,
                                     const std::map<std::string, std::string>& environment) const {
  Command command = program(PRETRAIN_GPT, flags.words());
  if (num_ranks > 1) {
    command.words.insert(command.words.begin(), {RUN_RANKS, std::to_string(num_ranks)});
  }
  for (const auto& [name, value] : environment) {
    command.environment[name] = value;
  }
  return command;
}

Ended SystemTest::pretrain(int num_ranks, const Flags& flags, const std::map<std::string, std::string>& environment) {
  return run_command(pretrain_command(num_ranks, flags, environment));
}

std::string SystemTest::make_corpus(const std::string& prefix, size_t num_tokens, uint64_t seed) {
  const char* const words[] = {"stone ", "wall ", "course ", "mason ", "lays ",
                               "the ",   "a ",    "square ", "on.\n",  "level "};
  std::string text;
  for (uint64_t state = seed; text.size() + 1 < num_tokens;) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    text += words[(state >> 33) % std::size(words)];
  }
  std::ofstream(path(prefix + ".txt")) << text.substr(0, num_tokens - 1);  // the last token ends the document
  const Ended ended = run_command(program(PREPROCESS_DATA, {"--input", prefix + ".txt", "--output-prefix", prefix,
                                                            "--tokenizer-type", "ByteTokenizer", "--append-eod"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.all();
  return prefix + "_text_document";
}

std::vector<StepLine> SystemTest::steps_of(const std::string& metrics_file) const {
  std::ifstream in(path(metrics_file));
  EXPECT_TRUE(in.good()) << metrics_file;
  std::vector<StepLine> lines;
  for (std::string text; std::getline(in, text);) {
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (in.eof() || json.is_discarded() || json.at("kind") != "train") {
      continue;  // a torn last line of a killed job, or a validation
    }
    lines.push_back({json.at("step"), json.at("loss"), json.at("grad_norm"),
                     json.value("weight_hash", std::vector<std::string>{})});
  }
  return lines;
}

Snapshot SystemTest::snapshot(const std::string& name) const {
  Snapshot files;
  const fs::path root = directory_ / name;
  std::error_code code;
  for (const auto& entry : fs::recursive_directory_iterator(root, code)) {
    std::ostringstream text;
    if (entry.is_regular_file()) {
      text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    }
    files[fs::relative(entry.path(), root).string()] = text.str();
  }
  return files;
}

void expect_success(const Ended& ended) {
  EXPECT_FALSE(ended.timed_out);
  EXPECT_EQ(ended.exit_code, 0) << ended.all();
  EXPECT_EQ(ended.ranks_left, 0);
}

void expect_error(const Ended& ended, ErrorCode code, const std::vector<std::string>& texts) {
  EXPECT_FALSE(ended.timed_out) << "the job hung";
  EXPECT_EQ(ended.exit_code, exit_code(code)) << ended.all();
  EXPECT_EQ(ended.ranks_left, 0);
  EXPECT_EQ(count(ended.err, "[error]"), 1) << ended.err;
  for (const std::string& text : texts) {
    EXPECT_THAT(ended.err, HasSubstr(text));
  }
}

void expect_bad_end(const Ended& ended) {
  EXPECT_FALSE(ended.timed_out) << "the job hung";
  EXPECT_NE(ended.exit_code, 0) << ended.all();
  EXPECT_EQ(ended.ranks_left, 0);
}

void expect_same_steps(const std::vector<StepLine>& resumed, const std::vector<StepLine>& whole) {
  ASSERT_FALSE(resumed.empty());
  ASSERT_LE(resumed.size(), whole.size());
  for (size_t at = 0; at < resumed.size(); ++at) {
    EXPECT_EQ(resumed[at].step, static_cast<int64_t>(at + 1));
    EXPECT_EQ(resumed[at], whole[at]);
  }
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) {
    ++found;
  }
  return found;
}

int64_t number_behind(const std::string& text, const std::string& before) {
  const size_t at = text.rfind(before);
  return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + before.size());
}

double validation_loss(const Ended& ended) {
  const std::string before = "lm loss value: ";
  const size_t at = ended.out.rfind(before);
  EXPECT_NE(at, std::string::npos) << ended.all();
  return at == std::string::npos ? -1 : std::atof(ended.out.c_str() + at + before.size());
}

}  // namespace ashlar::system_test
