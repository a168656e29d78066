#include "runtime/data/dataset.h"

#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include "tests/runtime/data/data_files.h"

namespace ashlar {
namespace {

using namespace data_test;
using testing::Each;
using testing::ElementsAre;

SampleOptions options_for(int64_t seq_length, DataOrder order = DataOrder::kSequential) {
  SampleOptions options;
  options.seq_length = seq_length;
  options.vocab_size = 65536;
  options.order = order;
  return options;
}

GptDataset whole(const std::string& prefix, const SampleOptions& options) {
  const std::shared_ptr<TokenFile> file = open_token_file(prefix);
  return {file, {0, file->num_tokens()}, "train", options};
}

// Case B61: documents with running ids and lengths 1, 2, s-1, s, s+1, 3s.
TEST(GptDataset, SamplesShareExactlyOneToken) {
  const TempFolder folder;
  for (const int32_t s : {1, 2, 3, 8, 31}) {
    const std::vector<int32_t> lengths = {1, 2, s - 1, s, s + 1, 3 * s};
    write_counting_pair(folder / "set", lengths);
    const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const GptDataset dataset = whole(folder / "set", options_for(s));
    ASSERT_EQ(dataset.samples_per_epoch(), (total - 1) / s) << s;
    for (int64_t k = 0; k < dataset.samples_per_epoch(); ++k) {
      const Sample sample = read_sample(dataset, k);
      for (int64_t i = 0; i < s; ++i) {
        EXPECT_EQ(sample.tokens[static_cast<size_t>(i)], k * s + i);
        EXPECT_EQ(sample.targets[static_cast<size_t>(i)], k * s + i + 1);
      }
      EXPECT_THAT(sample.mask, Each(1.0f));
    }
  }
}

TEST(GptDataset, EpochsDropTheTail) {
  const TempFolder folder;
  const int32_t s = 4;
  for (const auto& [tokens, samples] :
       std::vector<std::pair<int32_t, int64_t>>{{5, 1}, {8, 1}, {9, 2}, {12, 2}, {13, 3}}) {
    write_counting_pair(folder / "set", {tokens});
    const GptDataset dataset = whole(folder / "set", options_for(s));
    EXPECT_EQ(dataset.samples_per_epoch(), samples) << tokens;
    EXPECT_EQ(read_sample(dataset, samples).tokens, read_sample(dataset, 0).tokens) << "the next epoch";
    EXPECT_THAT(read_sample(dataset, samples - 1).targets, testing::Contains(samples * s)) << "its last token";
  }
}

// Case B50: a data set of exactly 4 global batches, read for 3 epochs: every epoch has every sample once, whatever the
// data ranks, and starting anywhere gives what an uninterrupted run gives.
TEST(GptDataset, EpochBoundaryOnAGlobalBatchBoundary) {
  const TempFolder folder;
  const int32_t s = 8;
  const int64_t global_batch = 6;
  const int64_t num_batches = 4;
  write_counting_pair(folder / "set", {static_cast<int32_t>(s * global_batch * num_batches + 1)});
  for (const DataOrder order : {DataOrder::kSequential, DataOrder::kShuffle}) {
    const GptDataset dataset = whole(folder / "set", options_for(s, order));
    ASSERT_EQ(dataset.samples_per_epoch(), global_batch * num_batches);
    std::vector<std::vector<int32_t>> run;  // first tokens of each global batch, one rank
    for (int64_t step = 0; step < 3 * num_batches; ++step) {
      run.emplace_back();
      for (int64_t i = 0; i < global_batch; ++i) {
        run.back().push_back(read_sample(dataset, step * global_batch + i).tokens[0]);
      }
    }
    std::set<std::vector<int32_t>> orders;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::multiset<int32_t> seen;
      std::vector<int32_t> in_order;
      for (int64_t step = epoch * num_batches; step < (epoch + 1) * num_batches; ++step) {
        const auto& batch = run[static_cast<size_t>(step)];
        seen.insert(batch.begin(), batch.end());
        in_order.insert(in_order.end(), batch.begin(), batch.end());
      }
      std::multiset<int32_t> expected;
      for (int32_t k = 0; k < global_batch * num_batches; ++k) {
        expected.insert(k * s);
      }
      EXPECT_EQ(seen, expected);
      orders.insert(in_order);
    }
    EXPECT_EQ(orders.size(), order == DataOrder::kShuffle ? 3u : 1u);

    // A new source, as after a resume, on 3 data ranks with micro-batches of 1 and 2.
    const GptDataset resumed = whole(folder / "set", options_for(s, order));
    for (const int64_t step : {3, 4, 5, 8, 11}) {
      for (const int64_t micro_batch : {1, 2}) {
        std::vector<int32_t> batch;
        for (int microbatch = 0; microbatch < global_batch / (3 * micro_batch); ++microbatch) {
          for (int data_rank = 0; data_rank < 3; ++data_rank) {
            const int64_t first = first_sample(step * global_batch, microbatch, data_rank, 3, micro_batch);
            for (int64_t i = 0; i < micro_batch; ++i) {
              batch.push_back(read_sample(resumed, first + i).tokens[0]);
            }
          }
        }
        EXPECT_EQ(batch, run[static_cast<size_t>(step)]) << "step " << step;
      }
    }
  }
}

TEST(GptDataset, ShuffledEpochsHaveEverySampleOnce) {
  const TempFolder folder;
  write_counting_pair(folder / "set", {1, 500, 2, 497});
  const GptDataset dataset = whole(folder / "set", options_for(3, DataOrder::kShuffle));
  const GptDataset in_order = whole(folder / "set", options_for(3));
  const int64_t n = dataset.samples_per_epoch();
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::set<std::vector<int32_t>> seen;
    for (int64_t k = 0; k < n; ++k) {
      seen.insert(read_sample(dataset, epoch * n + k).targets);
    }
    std::set<std::vector<int32_t>> expected;
    for (int64_t k = 0; k < n; ++k) {
      expected.insert(read_sample(in_order, k).targets);
    }
    EXPECT_EQ(seen, expected);
  }
}

TEST(GptDataset, StaysWithinItsRange) {
  const TempFolder folder;
  write_counting_pair(folder / "set", {100});
  const std::shared_ptr<TokenFile> file = open_token_file(folder / "set");
  const GptDataset dataset(file, {40, 61}, "valid", options_for(5));
  ASSERT_EQ(dataset.samples_per_epoch(), 4);
  EXPECT_THAT(read_sample(dataset, 0).tokens, ElementsAre(40, 41, 42, 43, 44));
  EXPECT_THAT(read_sample(dataset, 3).targets, ElementsAre(56, 57, 58, 59, 60));
  EXPECT_THAT(read_sample(dataset, 4).tokens, ElementsAre(40, 41, 42, 43, 44));
}

// Megatron's rule: loss_mask is 0 where the INPUT token is the document end.
TEST(GptDataset, MasksDocumentEndsWhenAsked) {
  const TempFolder folder;
  write_file(folder / "set.idx", index_bytes({3, 4}, TokenType::kU16));
  write_file(folder / "set.bin", token_bytes_of<uint16_t>({5, 6, 256, 7, 8, 9, 256}));
  SampleOptions options = options_for(6);
  options.eod_token = 256;
  EXPECT_THAT(read_sample(whole(folder / "set", options), 0).mask, Each(1.0f));
  options.eod_mask_loss = true;
  const Sample sample = read_sample(whole(folder / "set", options), 0);
  EXPECT_THAT(sample.tokens, ElementsAre(5, 6, 256, 7, 8, 9));
  EXPECT_THAT(sample.targets, ElementsAre(6, 256, 7, 8, 9, 256));
  EXPECT_THAT(sample.mask, ElementsAre(1, 1, 0, 1, 1, 1));
  options.eod_token = -1;
  expect_error(ErrorCode::kUsage, {"--eod-mask-loss", "--tokenizer-type"}, [&] { whole(folder / "set", options); });
}

TEST(GptDataset, NamesDataThatIsTooShort) {
  const TempFolder folder;
  write_counting_pair(folder / "set", {8});
  EXPECT_EQ(whole(folder / "set", options_for(7)).samples_per_epoch(), 1);
  expect_error(ErrorCode::kData, {folder / "set", "8 tokens", "9", "--seq-length 8", "--split"},
               [&] { whole(folder / "set", options_for(8)); });
  write_file(folder / "empty.idx", index_bytes({}, TokenType::kU16));
  write_file(folder / "empty.bin", "");
  expect_error(ErrorCode::kData, {"0 tokens"}, [&] { whole(folder / "empty", options_for(8)); });
  expect_error(ErrorCode::kUsage, {"--seq-length"}, [&] { whole(folder / "set", options_for(0)); });
}

TEST(GptDataset, NamesIdsBeyondTheVocabulary) {
  const TempFolder folder;
  write_counting_pair(folder / "set", {20});
  SampleOptions options = options_for(4);
  options.vocab_size = 12;
  const GptDataset dataset = whole(folder / "set", options);
  EXPECT_EQ(read_sample(dataset, 1).targets.back(), 8);
  expect_error(ErrorCode::kData, {"set.bin", "token 12 of 20", "id 12", "vocabulary has 12"},
               [&] { read_sample(dataset, 2); });
}

TEST(FillBatch, FillsRows) {
  const TempFolder folder;
  write_counting_pair(folder / "set", {100});
  const GptDataset dataset = whole(folder / "set", options_for(4));
  std::vector<int32_t> tokens(12), targets(12);
  std::vector<float> mask(12);
  MicroBatch batch{view_of(tokens.data(), {3, 4}), view_of(targets.data(), {3, 4}), view_of(mask.data(), {3, 4})};
  fill_batch(batch, dataset, 5);
  EXPECT_THAT(tokens, ElementsAre(20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31));
  EXPECT_THAT(targets, ElementsAre(21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32));
  EXPECT_THAT(mask, Each(1.0f));
  MicroBatch wrong{view_of(tokens.data(), {4, 3}), view_of(targets.data(), {4, 3}), view_of(mask.data(), {4, 3})};
  expect_error(ErrorCode::kInternal, {"[4,3]"}, [&] { fill_batch(wrong, dataset, 0); });
}

TEST(MockSource, IsPureAndWithinTheVocabulary) {
  SampleOptions options = options_for(16);
  options.vocab_size = 11;
  const MockSource source("train", options);
  std::set<int32_t> seen;
  for (int64_t k = 0; k < 50; ++k) {
    const Sample sample = read_sample(source, k);
    EXPECT_EQ(sample.tokens, read_sample(MockSource("train", options), k).tokens);
    EXPECT_TRUE(std::equal(sample.tokens.begin() + 1, sample.tokens.end(), sample.targets.begin()));
    seen.insert(sample.tokens.begin(), sample.tokens.end());
  }
  EXPECT_EQ(seen.size(), 11u);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 10);
  EXPECT_NE(read_sample(source, 0).tokens, read_sample(source, 1).tokens);
  EXPECT_NE(read_sample(source, 0).tokens, read_sample(MockSource("valid", options), 0).tokens);
}

TEST(DataOrder, IsParsed) {
  EXPECT_EQ(parse_data_order("shuffle"), DataOrder::kShuffle);
  EXPECT_EQ(parse_data_order("sequential"), DataOrder::kSequential);
  expect_error(ErrorCode::kUsage, {"--data-order", "random", "shuffle", "sequential"},
               [] { parse_data_order("random"); });
}

}  // namespace
}  // namespace ashlar
