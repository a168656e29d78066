#include "runtime/data/open_datasets.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/runtime/data/data_files.h"

namespace ashlar {
namespace {

using namespace data_test;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

DataOptions options_for(const std::vector<std::string>& data_path) {
  DataOptions options;
  options.data_path = data_path;
  options.samples.seq_length = 4;
  options.samples.vocab_size = 65536;
  options.samples.order = DataOrder::kSequential;
  return options;
}

TEST(ParseDataPath, TakesMegatronsThreeForms) {
  const WeightedPaths one = parse_data_path({"a"});
  EXPECT_THAT(one.paths, ElementsAre("a"));
  EXPECT_THAT(one.weights, IsEmpty());
  const WeightedPaths plain = parse_data_path({"a", "b"});
  EXPECT_THAT(plain.paths, ElementsAre("a", "b"));
  EXPECT_THAT(plain.weights, IsEmpty());
  const WeightedPaths weighted = parse_data_path({"0.3", "a", "7e-1", "b"});
  EXPECT_THAT(weighted.paths, ElementsAre("a", "b"));
  EXPECT_THAT(weighted.weights, ElementsAre(0.3, 0.7));
  EXPECT_THAT(parse_data_path({"1", "a", "b"}).paths, ElementsAre("1", "a", "b"));
  expect_error(ErrorCode::kUsage, {"--data-path", "weight", "0"}, [] { parse_data_path({"0", "a"}); });
}

TEST(OpenDatasets, SplitsOnePath) {
  const TempFolder folder;
  write_counting_pair(folder / "set", {1000});
  const DataSources sources = open_datasets(options_for({folder / "set"}));
  ASSERT_NE(sources.train, nullptr);
  ASSERT_NE(sources.valid, nullptr);
  EXPECT_EQ(sources.test, nullptr) << "not needed, so its one token does no harm";
  EXPECT_EQ(sources.train->samples_per_epoch(), 968 / 4);
  EXPECT_EQ(sources.valid->samples_per_epoch(), 29 / 4);
  EXPECT_EQ(read_sample(*sources.valid, 0).tokens[0], 969);
  EXPECT_THAT(sources.train->description(), HasSubstr("split by tokens"));
  DataOptions with_test = options_for({folder / "set"});
  with_test.need_test = true;
  expect_error(ErrorCode::kData, {folder / "set", "test split has 1 tokens", "--split", "--seq-length"},
               [&] { open_datasets(with_test); });
  with_test.split = "90,10,0";
  EXPECT_EQ(open_datasets(with_test).test, nullptr);
  with_test.split = "0,90,10";
  expect_error(ErrorCode::kUsage, {"--split", "training"}, [&] { open_datasets(with_test); });
}

TEST(OpenDatasets, BlendsPaths) {
  const TempFolder folder;
  write_counting_pair(folder / "a", {41});
  write_counting_pair(folder / "b", {81});
  DataOptions options = options_for({folder / "a", folder / "b"});
  options.split = "1";
  const DataSources plain = open_datasets(options);
  EXPECT_EQ(plain.train->samples_per_epoch(), 30);
  EXPECT_EQ(plain.valid, nullptr);
  std::multiset<int32_t> seen;
  std::multiset<int32_t> expected;
  for (int32_t k = 0; k < 30; ++k) {
    seen.insert(read_sample(*plain.train, k).tokens[0]);
    expected.insert(k < 10 ? k * 4 : (k - 10) * 4);
  }
  EXPECT_EQ(seen, expected) << "every sample of both, once";

  options.data_path = {"3", folder / "a", "1", folder / "b"};
  const DataSources weighted = open_datasets(options);
  EXPECT_THAT(weighted.train->description(), HasSubstr("by weight"));
  std::vector<int32_t> first_tokens;
  for (int64_t k = 0; k < 6; ++k) {
    first_tokens.push_back(read_sample(*weighted.train, k).tokens[0]);
  }
  // w = 0.75, 0.25: errors at i = 0: .75, .25 -> a0; 1: -.25, .25 -> b0; 2: .5 -> a1; 3: .25 -> a2; 4: 0, 0 -> a3 ...
  EXPECT_THAT(first_tokens, ElementsAre(0, 0, 4, 8, 12, 4));
}

TEST(OpenDatasets, TakesPathsPerSplit) {
  const TempFolder folder;
  write_counting_pair(folder / "a", {41});
  write_counting_pair(folder / "b", {81});
  DataOptions options = options_for({});
  options.train_data_path = {folder / "b"};
  EXPECT_EQ(open_datasets(options).valid, nullptr);
  options.valid_data_path = {folder / "a"};
  const DataSources sources = open_datasets(options);
  EXPECT_EQ(sources.train->samples_per_epoch(), 20);
  EXPECT_EQ(sources.valid->samples_per_epoch(), 10);
  options.train_data_path.clear();
  expect_error(ErrorCode::kUsage, {"--train-data-path"}, [&] { open_datasets(options); });
}

TEST(OpenDatasets, TakesMockData) {
  DataOptions options = options_for({});
  expect_error(ErrorCode::kUsage, {"--data-path", "--mock-data", "none"}, [&] { open_datasets(options); });
  options.mock_data = true;
  const DataSources sources = open_datasets(options);
  EXPECT_NE(read_sample(*sources.train, 0).tokens, read_sample(*sources.valid, 0).tokens);
  options.data_path = {"a"};
  expect_error(ErrorCode::kUsage, {"--data-path", "--mock-data", "more than one"}, [&] { open_datasets(options); });
}

TEST(OpenDatasets, FingerprintTellsDataAndFlagsApart) {
  const TempFolder folder;
  write_counting_pair(folder / "a", {1000});
  write_counting_pair(folder / "same", {1000});
  write_counting_pair(folder / "b", {1001});
  const DataOptions base = options_for({folder / "a"});
  const uint64_t fingerprint = open_datasets(base).fingerprint;
  EXPECT_EQ(open_datasets(options_for({folder / "same"})).fingerprint, fingerprint);
  std::set<uint64_t> all = {fingerprint};
  const auto add = [&](const DataOptions& options) {
    EXPECT_TRUE(all.insert(open_datasets(options).fingerprint).second) << all.size();
  };
  add(options_for({folder / "b"}));
  add(options_for({folder / "a", folder / "b"}));
  add(options_for({folder / "b", folder / "a"}));
  add(options_for({"1", folder / "a", "2", folder / "b"}));
  add(options_for({"2", folder / "a", "1", folder / "b"}));
  DataOptions changed = base;
  changed.split = "90,10,0";
  add(changed);
  changed = base;
  changed.samples.seed = 5;
  add(changed);
  changed = base;
  changed.samples.seq_length = 5;
  add(changed);
  changed = base;
  changed.samples.order = DataOrder::kShuffle;
  add(changed);
}

}  // namespace
}  // namespace ashlar
