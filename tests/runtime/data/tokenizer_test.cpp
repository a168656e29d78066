#include "runtime/data/tokenizer.h"

#include <gmock/gmock.h>

#include "tests/runtime/data/data_files.h"

namespace ashlar {
namespace {

using namespace data_test;
using testing::ElementsAre;

TEST(ByteTokenizer, RoundTripsEveryByte) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) {
    text.push_back(static_cast<char>(byte));
  }
  const auto tokenizer = make_tokenizer("ByteTokenizer");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eod(), 256);
  std::vector<int32_t> ids = {7};
  tokenizer->encode(text, ids);
  ASSERT_EQ(ids.size(), 257u);
  EXPECT_EQ(ids[0], 7) << "encode appends";
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(ids[static_cast<size_t>(byte) + 1], byte);
  }
  EXPECT_EQ(tokenizer->decode(std::span(ids).subspan(1)), text);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{'a', 256, 'b'}), "ab");
  expect_error(ErrorCode::kData, {"0 to 256", "257"}, [&] { tokenizer->decode(std::vector<int32_t>{257}); });
  expect_error(ErrorCode::kData, {"-1"}, [&] { tokenizer->decode(std::vector<int32_t>{-1}); });
}

TEST(NullTokenizer, ReadsNumbers) {
  const auto tokenizer = make_tokenizer("NullTokenizer", 1000);
  EXPECT_EQ(tokenizer->vocab_size(), 1001);
  EXPECT_EQ(tokenizer->eod(), 1000);
  std::vector<int32_t> ids;
  tokenizer->encode(" 1 22\n999\t0 ", ids);
  EXPECT_THAT(ids, ElementsAre(1, 22, 999, 0));
  EXPECT_EQ(tokenizer->decode(ids), "1 22 999 0");
  for (const std::string bad : {"1000", "-1", "x", "1x", "99999999999999999999"}) {
    expect_error(ErrorCode::kData, {"0 to 999", bad}, [&] { tokenizer->encode("1 " + bad, ids); });
  }
}

TEST(MakeTokenizer, ListsTheNames) {
  expect_error(ErrorCode::kUsage, {"--tokenizer-type", "GPT2BPETokenizer", "ByteTokenizer", "NullTokenizer"},
               [] { make_tokenizer("GPT2BPETokenizer"); });
  expect_error(ErrorCode::kUsage, {"NullTokenizer", "--vocab-size"}, [] { make_tokenizer("NullTokenizer"); });
  expect_error(ErrorCode::kUsage, {"--vocab-size 300", "257"}, [] { make_tokenizer("ByteTokenizer", 300); });
}

}  // namespace
}  // namespace ashlar
