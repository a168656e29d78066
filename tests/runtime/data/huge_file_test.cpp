// Files beyond 2 GiB and 2^31 tokens, made of holes: they take no disk, and reading must take no memory either.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/data/dataset.h"
#include "tests/runtime/data/data_files.h"

namespace ashlar {
namespace {

using namespace data_test;
using testing::Each;
using testing::ElementsAre;

// A file of `size` bytes with some written at an offset.
void write_sparse(const std::string& path, int64_t size, int64_t offset, const std::string& bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0644);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::ftruncate(file, size), 0);
  ASSERT_EQ(::pwrite(file, bytes.data(), bytes.size(), offset), static_cast<ssize_t>(bytes.size()));
  ::close(file);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  ASSERT_EQ(status.st_size, size);
  ASSERT_LT(status.st_blocks * 512, 64 << 20) << "this file system has no holes";
}

int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

SampleOptions sequential(int64_t seq_length) {
  SampleOptions options;
  options.seq_length = seq_length;
  options.vocab_size = 100;
  options.order = DataOrder::kSequential;
  return options;
}

TEST(HugeFile, IndexedBeyond31BitsOfTokens) {
  const TempFolder folder;
  const std::string prefix = folder / "huge";
  constexpr int32_t kLength = 1'500'000'000;
  constexpr int64_t kTokens = int64_t{2} * kLength;  // 3e9 tokens, 6e9 bytes
  constexpr int64_t kMark = int64_t{2'999'998'000};
  static_assert(kMark > int64_t{1} << 31);
  write_file(prefix + ".idx", index_bytes({kLength, kLength}, TokenType::kU16));
  write_sparse(prefix + ".bin", kTokens * 2, kMark * 2, token_bytes_of<uint16_t>({7, 8, 9}));

  const int64_t before = peak_bytes();
  const std::shared_ptr<TokenFile> file = open_token_file(prefix);
  EXPECT_EQ(file->num_tokens(), kTokens);
  EXPECT_EQ(file->sequence_begin(1), kLength);
  EXPECT_EQ(file->sequence_begin(2), kTokens);
  EXPECT_THAT(read_tokens(*file, kMark - 1, 5), ElementsAre(0, 7, 8, 9, 0));
  const GptDataset dataset(file, {0, kTokens}, "train", sequential(1000));
  EXPECT_EQ(dataset.samples_per_epoch(), (kTokens - 1) / 1000);
  const Sample sample = read_sample(dataset, kMark / 1000);
  EXPECT_THAT(std::vector(sample.tokens.begin(), sample.tokens.begin() + 3), ElementsAre(7, 8, 9));
  EXPECT_EQ(read_sample(dataset, kMark / 1000 - 1).targets.back(), 7) << "the shared token";
  file->fingerprint();
  EXPECT_LT(peak_bytes() - before, 64 << 20);

  ASSERT_EQ(::truncate((prefix + ".bin").c_str(), kTokens * 2 - 1), 0);
  expect_error(ErrorCode::kData, {"expected 6000000000 bytes", "found 5999999999"}, [&] { open_token_file(prefix); });
}

TEST(HugeFile, ShuffledSamplesReachEveryPart) {
  const TempFolder folder;
  const std::string prefix = folder / "huge";
  constexpr int32_t kLength = 1'500'000'000;
  write_file(prefix + ".idx", index_bytes({kLength, kLength}, TokenType::kU8));
  write_sparse(prefix + ".bin", int64_t{2} * kLength, 0, "");
  SampleOptions options = sequential(1);
  options.order = DataOrder::kShuffle;
  const GptDataset dataset(open_token_file(prefix), {0, int64_t{2} * kLength}, "train", options);
  EXPECT_EQ(dataset.samples_per_epoch(), int64_t{2} * kLength - 1);
  for (int64_t k = 0; k < 20; ++k) {
    EXPECT_THAT(read_sample(dataset, k * 149'999'999).tokens, Each(0));
  }
}

TEST(HugeFile, ShardsBeyond31BitsOfTokens) {
  const TempFolder folder;
  constexpr int32_t kCount = 1'200'000'000;
  for (const char* name : {"s0.bin", "s1.bin"}) {
    write_sparse(folder / name, 1024 + int64_t{kCount} * 4, 0, shard_header(20240801, 7, kCount));
  }
  constexpr int64_t kOffset = kCount - 10;
  write_sparse(folder / "s1.bin", 1024 + int64_t{kCount} * 4, 1024 + kOffset * 4, token_bytes_of<uint32_t>({41, 42}));
  const auto file = open_token_file(folder / "s?.bin");
  EXPECT_EQ(file->num_tokens(), int64_t{2} * kCount);
  EXPECT_THAT(read_tokens(*file, kCount + kOffset, 3), ElementsAre(41, 42, 0));
  expect_error(ErrorCode::kData, {"s1.bin", "token 1199999991", "id 42"},
               [&] { read_tokens(*file, kCount + kOffset, 2, 42); });
}

}  // namespace
}  // namespace ashlar
