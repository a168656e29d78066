#include "runtime/data/split.h"

#include <gmock/gmock.h>

#include "tests/runtime/data/data_files.h"

namespace ashlar {
namespace {

using namespace data_test;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(ParseSplit, TakesMegatronsForms) {
  EXPECT_THAT(parse_split("969,30,1"), ElementsAre(0.969, 0.030, 0.001));
  EXPECT_THAT(parse_split("969, 30, 1"), ElementsAre(0.969, 0.030, 0.001));
  EXPECT_THAT(parse_split("90/5/5"), ElementsAre(0.9, 0.05, 0.05));
  EXPECT_THAT(parse_split("100"), ElementsAre(1, 0, 0));
  EXPECT_THAT(parse_split("0.5,0.5"), ElementsAre(0.5, 0.5, 0));
  for (const char* bad : {"", "a,b,c", "1,2,3,4", "-1,2,0", "0,0,0", "1,,2", "1;2", "nan,1", "inf,1,1"}) {
    expect_error(ErrorCode::kUsage, {"--split", bad}, [&] { parse_split(bad); });
  }
}

TEST(SplitBounds, RoundsLikeMegatron) {
  EXPECT_THAT(split_bounds(parse_split("969,30,1"), 1000), ElementsAre(0, 969, 999, 1000));
  EXPECT_THAT(split_bounds(parse_split("969,30,1"), 100), ElementsAre(0, 97, 100, 100));
  EXPECT_THAT(split_bounds(parse_split("969,30,1"), 10), ElementsAre(0, 10, 10, 10));
  // Python's round takes halves to the even number: 0.5 -> 0, 1.5 -> 2, 2.5 -> 2.
  EXPECT_THAT(split_bounds(parse_split("50,50,0"), 1), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(split_bounds(parse_split("50,50,0"), 3), ElementsAre(0, 2, 3, 3));
  EXPECT_THAT(split_bounds(parse_split("50,50,0"), 5), ElementsAre(0, 2, 5, 5));
  EXPECT_THAT(split_bounds(parse_split("1,1,1"), 3'000'000'000'000),
              ElementsAre(0, 1'000'000'000'000, 2'000'000'000'000, 3'000'000'000'000));
}

TEST(SplitTokens, BySequencesWhereThatWorks) {
  const TempFolder folder;
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 100; ++i) {
    lengths.push_back(i + 1);
  }
  write_counting_pair(folder / "set", lengths);
  const auto ranges = split_tokens(*open_token_file(folder / "set"), parse_split("90,8,2"));
  EXPECT_STREQ(ranges[0].rule, "split by sequences");
  EXPECT_EQ(ranges[0].begin, 0);
  EXPECT_EQ(ranges[0].end, 90 * 91 / 2);
  EXPECT_EQ(ranges[1].begin, ranges[0].end);
  EXPECT_EQ(ranges[1].end, 98 * 99 / 2);
  EXPECT_EQ(ranges[2].begin, ranges[1].end);
  EXPECT_EQ(ranges[2].end, 5050);
}

TEST(SplitTokens, ByTokensWhereASplitWouldBeEmpty) {
  const TempFolder folder;
  write_counting_pair(folder / "one", {10'000});
  write_counting_pair(folder / "few", {9'000, 500, 500});
  write_file(folder / "shard.bin", shard_header(20240520, 1, 10'000) + std::string(20'000, '\0'));
  for (const std::string name : {"one", "few", "shard.bin"}) {
    const auto ranges = split_tokens(*open_token_file(folder / name), parse_split("969,30,1"));
    EXPECT_STREQ(ranges[0].rule, "split by tokens") << name;
    EXPECT_EQ(ranges[0].end, 9690);
    EXPECT_EQ(ranges[1].begin, 9690);
    EXPECT_EQ(ranges[1].end, 9990);
    EXPECT_EQ(ranges[2].end, 10'000);
  }
  // A fraction of 0 is meant to be empty.
  EXPECT_STREQ(split_tokens(*open_token_file(folder / "few"), parse_split("2,1,0"))[0].rule, "split by sequences");
  EXPECT_STREQ(split_tokens(*open_token_file(folder / "one"), parse_split("1,0,0"))[0].rule, "split by sequences");
}

}  // namespace
}  // namespace ashlar
