#include "runtime/data/token_file_writer.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <numeric>

#include "tests/runtime/data/data_files.h"

namespace ashlar {
namespace {

using namespace data_test;

void write_documents(const std::string& prefix, int64_t vocab_size, const std::vector<std::vector<int32_t>>& documents,
                     bool overwrite = false) {
  TokenFileWriter writer(prefix, vocab_size, overwrite);
  for (const auto& document : documents) {
    writer.append(document);
    writer.end_document();
  }
  writer.finish();
}

TEST(TokenFileWriter, WritesMegatronsBytes) {
  const TempFolder folder;
  write_documents(folder / "small", 65499, {{1, 2, 3}, {4, 65498}});
  EXPECT_EQ(read_file(folder / "small.idx"), index_bytes({3, 2}, TokenType::kU16));
  EXPECT_EQ(read_file(folder / "small.bin"), token_bytes_of<uint16_t>({1, 2, 3, 4, 65498}));
  write_documents(folder / "large", 65500, {{1, 2, 3}, {4, 65499}});
  EXPECT_EQ(read_file(folder / "large.idx"), index_bytes({3, 2}, TokenType::kI32));
  EXPECT_EQ(read_file(folder / "large.bin"), token_bytes_of<int32_t>({1, 2, 3, 4, 65499}));
  EXPECT_EQ(folder.num_files(), 4u) << "temporary files are left";
}

TEST(TokenFileWriter, RoundTripsDocumentsInPieces) {
  const TempFolder folder;
  std::vector<int32_t> tokens(1'000'000);
  std::iota(tokens.begin(), tokens.end(), 0);
  TokenFileWriter writer(folder / "set", 2'000'000, false);
  for (size_t begin = 0; begin < tokens.size(); begin += 100'000) {
    writer.append(std::span(tokens).subspan(begin, 100'000));
  }
  EXPECT_TRUE(writer.end_document());
  EXPECT_FALSE(writer.end_document()) << "an empty document leaves no trace";
  writer.append(std::vector<int32_t>{7});
  EXPECT_TRUE(writer.end_document());
  writer.finish();
  EXPECT_EQ(writer.num_documents(), 2);
  EXPECT_EQ(writer.num_tokens(), 1'000'001);
  const auto file = open_token_file(folder / "set");
  EXPECT_EQ(file->num_documents(), 2);
  EXPECT_EQ(file->sequence_begin(1), 1'000'000);
  tokens.push_back(7);
  EXPECT_EQ(read_tokens(*file, 0, file->num_tokens()), tokens);
}

TEST(TokenFileWriter, CutsDocumentsBeyondTheIndexsLengths) {
  const TempFolder folder;
  TokenFileWriter writer(folder / "set", 257, false, 4);
  for (const std::vector<int32_t>& document : {std::vector<int32_t>{0, 1, 2, 3}, {4, 5, 6, 7, 8, 9, 10, 11, 12}}) {
    writer.append(std::span(document).first(3));
    writer.append(std::span(document).subspan(3));
    writer.end_document();
  }
  writer.finish();
  EXPECT_EQ(read_file(folder / "set.idx"), index_bytes({4, 4, 4, 1}, TokenType::kU16, {0, 1, 4}));
  const auto file = open_token_file(folder / "set");
  EXPECT_EQ(file->num_documents(), 2);
  EXPECT_EQ(read_tokens(*file, 0, 13), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
}

TEST(TokenFileWriter, RefusesToOverwrite) {
  const TempFolder folder;
  write_documents(folder / "set", 257, {{1, 2, 3}});
  const std::string before = read_file(folder / "set.bin");
  expect_error(ErrorCode::kUsage, {"set.idx", "exists", "--overwrite"},
               [&] { write_documents(folder / "set", 257, {{9}}); });
  EXPECT_EQ(read_file(folder / "set.bin"), before);
  std::filesystem::remove(folder / "set.idx");
  expect_error(ErrorCode::kUsage, {"set.bin", "exists", "--overwrite"},
               [&] { write_documents(folder / "set", 257, {{9}}); });
  write_documents(folder / "set", 257, {{9}}, true);
  EXPECT_EQ(read_tokens(*open_token_file(folder / "set"), 0, 1), std::vector<int32_t>{9});
  EXPECT_EQ(folder.num_files(), 2u);
}

TEST(TokenFileWriter, LeavesNothingBehindUnlessFinished) {
  const TempFolder folder;
  write_documents(folder / "set", 257, {{1, 2, 3}});
  {
    TokenFileWriter writer(folder / "set", 257, true);
    writer.append(std::vector<int32_t>(5'000'000, 1));
    writer.end_document();
    expect_error(ErrorCode::kData, {"set.bin.tmp", "another process"},
                 [&] { TokenFileWriter second(folder / "set", 257, true); });
  }
  EXPECT_EQ(folder.num_files(), 2u);
  EXPECT_EQ(open_token_file(folder / "set")->num_tokens(), 3);
}

TEST(TokenFileWriter, NamesAMissingFolder) {
  const TempFolder folder;
  expect_error(ErrorCode::kUsage, {"--output-prefix", "none", "does not exist"},
               [&] { TokenFileWriter writer(folder / "none/set", 257, false); });
}

// A file size limit stands in for a full disk: write() fails half way in the same manner.
TEST(TokenFileWriter, ReportsAFullDiskAndCleansUp) {
  const TempFolder folder;
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {3 << 20, old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error(ErrorCode::kData, {"set.bin.tmp", "writing failed", "File too large"},
               [&] { write_documents(folder / "set", 257, {std::vector<int32_t>(5'000'000, 1)}); });
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(folder.num_files(), 0u);
}

}  // namespace
}  // namespace ashlar
