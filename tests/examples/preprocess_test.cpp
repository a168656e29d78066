// preprocess_data as its users meet it: a process, its exit code, its messages and its files.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>

#include "tests/runtime/data/data_files.h"

namespace ashlar {
namespace {

using namespace data_test;
using testing::AllOf;
using testing::HasSubstr;

struct Outcome {
  int exit_code;
  std::string text;  // stdout and stderr
};

Outcome run_shell(const std::string& command) {
  std::FILE* pipe = ::popen(("{ " + command + "; } 2>&1").c_str(), "r");
  std::string text;
  for (int letter = std::fgetc(pipe); letter != EOF; letter = std::fgetc(pipe)) {
    text.push_back(static_cast<char>(letter));
  }
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

class Preprocess : public testing::Test {
 protected:
  Outcome run(const std::string& arguments) {
    return run_shell(fmt::format("timeout 60 {} --tokenizer-type ByteTokenizer {}", PREPROCESS_DATA, arguments));
  }
  std::string in(const std::string& name) const { return folder_ / name; }
  std::vector<int32_t> document(const TokenFile& file, int64_t number) const {
    const int64_t begin = file.sequence_begin(number);
    return read_tokens(file, begin, file.sequence_begin(number + 1) - begin);
  }
  std::string text_of(const TokenFile& file, int64_t number) const {
    std::string text;
    for (const int32_t id : document(file, number)) {
      text += id == 256 ? std::string("<eod>") : std::string(1, static_cast<char>(id));
    }
    return text;
  }

  TempFolder folder_;
};

TEST_F(Preprocess, PlainTextIsOneDocument) {
  std::string text = "every byte:";
  for (int i = 0; i < 3'000'000; ++i) {
    text.push_back(static_cast<char>(i * 7));  // no valid UTF-8
  }
  write_file(in("text.txt"), text);
  const Outcome outcome = run(fmt::format("--input {} --output-prefix {} --append-eod", in("text.txt"), in("corpus")));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("1 documents, 3000012 tokens"), HasSubstr("--data-path " + in("corpus")),
                                  HasSubstr("MB/s")));
  const auto file = open_token_file(in("corpus_text_document"));
  ASSERT_EQ(file->num_documents(), 1);
  EXPECT_EQ(text_of(*file, 0), text + "<eod>");
  EXPECT_EQ(file->token_type(), TokenType::kU16);
  EXPECT_EQ(folder_.num_files(), 3u);
}

TEST_F(Preprocess, SplitsPlainTextAtBlankLinesOrLines) {
  write_file(in("text.txt"), "\n\none\ntwo\n\n \t\n\nthree\nfour");
  EXPECT_EQ(run(fmt::format("--input {} --output-prefix {} --append-eod --split-documents blank-lines", in("text.txt"),
                            in("blank")))
                .exit_code,
            0);
  const auto blank = open_token_file(in("blank_text_document"));
  ASSERT_EQ(blank->num_documents(), 2);
  EXPECT_EQ(text_of(*blank, 0), "one\ntwo\n<eod>");
  EXPECT_EQ(text_of(*blank, 1), "three\nfour\n<eod>");
  EXPECT_EQ(
      run(fmt::format("--input {} --output-prefix {} --split-documents lines", in("text.txt"), in("lines"))).exit_code,
      0);
  const auto lines = open_token_file(in("lines_text_document"));
  ASSERT_EQ(lines->num_documents(), 4);
  EXPECT_EQ(text_of(*lines, 3), "four\n");
}

TEST_F(Preprocess, JsonlMakesAPairForEveryKey) {
  write_file(in("set.jsonl"),
             "{\"text\": \"first \\u00e9\", \"title\": \"A\"}\n\n{\"title\": \"B\", \"text\": \"\"}\n"
             "{\"text\": \"third\", \"title\": \"C\", \"other\": 5}");
  const Outcome outcome = run(fmt::format(
      "--input {} --output-prefix {} --json-keys text title --append-eod --workers 4", in("set.jsonl"), in("out")));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("1 empty documents left out"), HasSubstr(in("out_text_document")),
                                  HasSubstr(in("out_title_document"))));
  const auto text = open_token_file(in("out_text_document"));
  ASSERT_EQ(text->num_documents(), 2);
  EXPECT_EQ(text_of(*text, 0), "first \xc3\xa9<eod>");
  EXPECT_EQ(text_of(*text, 1), "third<eod>");
  const auto title = open_token_file(in("out_title_document"));
  ASSERT_EQ(title->num_documents(), 3);
  EXPECT_EQ(text_of(*title, 1), "B<eod>");
}

TEST_F(Preprocess, ReadsStdin) {
  const std::string command = fmt::format("{} --tokenizer-type ByteTokenizer --input - ", PREPROCESS_DATA);
  EXPECT_EQ(run_shell(fmt::format("printf 'a b' | {} --output-prefix {}", command, in("text"))).exit_code, 0);
  EXPECT_EQ(text_of(*open_token_file(in("text_text_document")), 0), "a b");
  EXPECT_EQ(run_shell(fmt::format("echo '{{\"text\": \"a b\"}}' | {} --input-format jsonl --output-prefix {}", command,
                                  in("json")))
                .exit_code,
            0);
  EXPECT_EQ(text_of(*open_token_file(in("json_text_document")), 0), "a b");
}

TEST_F(Preprocess, TokenizesNumbersAcrossPieces) {
  std::string text;
  for (int i = 0; i < 400'000; ++i) {  // 2.7 MB: the input is read in pieces of 1 MiB
    text += fmt::format("{} ", 100'000 + i);
  }
  write_file(in("numbers.txt"), text);
  const Outcome outcome =
      run_shell(fmt::format("{} --tokenizer-type NullTokenizer --vocab-size 600000 --input {} --output-prefix {}",
                            PREPROCESS_DATA, in("numbers.txt"), in("out")));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  const auto file = open_token_file(in("out_text_document"));
  EXPECT_EQ(file->token_type(), TokenType::kI32);
  const std::vector<int32_t> ids = document(*file, 0);
  ASSERT_EQ(ids.size(), 400'000u);
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(ids[i], 100'000 + static_cast<int32_t>(i));
  }
}

TEST_F(Preprocess, NamesWhatIsWrong) {
  write_file(in("good.txt"), "text");
  write_file(in("empty.txt"), "");
  write_file(in("not.jsonl"), "{\"text\": \"a\"}\nplain text\n");
  write_file(in("key.jsonl"), "{\"text\": \"a\"}\n\n{\"body\": \"b\"}\n");
  write_file(in("number.jsonl"), "{\"text\": 5}\n");
  write_file(in("array.jsonl"), "[1]\n");
  write_file(in("latin.jsonl"), "{\"text\": \"caf\xe9\"}\n");
  struct Case {
    std::string arguments;
    int exit_code;
    std::vector<std::string> words;
  };
  const std::string to = " --output-prefix " + in("out");
  const std::vector<Case> cases = {
      {"--input " + in("none.txt") + to, 3, {"--input", "none.txt", "No such file"}},
      {"--input " + in("") + to, 3, {"--input", "expected a file, found a folder"}},
      {"--input " + in("empty.txt") + to, 3, {"empty.txt", "no text", "nothing written"}},
      {"--input " + in("not.jsonl") + to, 3, {"not.jsonl", "line 2 is not JSON"}},
      {"--input " + in("key.jsonl") + to, 3, {"key.jsonl", "line 3", "no key \"text\"", "--json-keys"}},
      {"--input " + in("number.jsonl") + to, 3, {"line 1", "expected a string", "number"}},
      {"--input " + in("array.jsonl") + to, 3, {"line 1", "expected a JSON object", "array"}},
      {"--input " + in("latin.jsonl") + to, 3, {"line 1", "UTF-8"}},
      {"--input " + in("key.jsonl") + to + " --json-keys text text", 2, {"--json-keys", "twice"}},
      {"--input " + in("key.jsonl") + to + " --split-documents lines", 2, {"--split-documents", "plain text"}},
      {"--input " + in("good.txt") + " --output-prefix " + in("no/where"), 2, {"--output-prefix", "does not exist"}},
      {"--input " + in("good.txt") + to + " --split-documents pages", 2, {"--split-documents", "pages"}},
      {"--input " + in("good.txt") + to + " --shards 5", 2, {"--shards"}},
      {"--input " + in("good.txt"), 2, {"--output-prefix"}},
  };
  const size_t files = folder_.num_files();
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.arguments);
    const Outcome outcome = run(bad.arguments);
    EXPECT_EQ(outcome.exit_code, bad.exit_code) << outcome.text;
    for (const std::string& word : bad.words) {
      EXPECT_THAT(outcome.text, HasSubstr(word));
    }
    EXPECT_EQ(folder_.num_files(), files) << "something was left behind";
  }
}

TEST_F(Preprocess, KeepsExistingOutput) {
  write_file(in("a.txt"), "first");
  write_file(in("b.txt"), "second");
  write_file(in("bad.jsonl"), "{\"text\": \"a\"}\n{");
  const std::string to = " --output-prefix " + in("out");
  EXPECT_EQ(run("--input " + in("a.txt") + to).exit_code, 0);
  const Outcome refused = run("--input " + in("b.txt") + to);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.text, AllOf(HasSubstr("out_text_document.idx"), HasSubstr("--overwrite")));
  EXPECT_EQ(run("--input " + in("bad.jsonl") + to + " --overwrite").exit_code, 3);
  EXPECT_EQ(text_of(*open_token_file(in("out_text_document")), 0), "first") << "an error must not touch it";
  EXPECT_EQ(run("--input " + in("b.txt") + to + " --overwrite").exit_code, 0);
  EXPECT_EQ(text_of(*open_token_file(in("out_text_document")), 0), "second");
  EXPECT_EQ(folder_.num_files(), 5u);
}

TEST_F(Preprocess, AFullDiskIsAnErrorAndLeavesNothing) {
  write_file(in("text.txt"), std::string(3'000'000, 'x'));
  const Outcome outcome = run_shell(
      fmt::format("bash -c 'trap \"\" XFSZ; ulimit -f 2000; exec {} --tokenizer-type ByteTokenizer --input {} "
                  "--output-prefix {}'",
                  PREPROCESS_DATA, in("text.txt"), in("out")));
  EXPECT_EQ(outcome.exit_code, 3) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("out_text_document.bin.tmp"), HasSubstr("writing failed")));
  EXPECT_EQ(folder_.num_files(), 1u);
}

TEST_F(Preprocess, HelpNamesEveryFlag) {
  const Outcome outcome = run_shell(fmt::format("{} --help", PREPROCESS_DATA));
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* flag : {"--input", "--output-prefix", "--tokenizer-type", "--vocab-size", "--json-keys",
                           "--append-eod", "--split-documents", "--workers", "--overwrite"}) {
    EXPECT_THAT(outcome.text, HasSubstr(flag));
  }
}

}  // namespace
}  // namespace ashlar
