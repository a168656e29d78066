#include "runtime/data/token_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>

#include "runtime/data/mapped_file.h"
#include "tests/runtime/data/data_files.h"

namespace ashlar {
namespace {

using namespace data_test;
using testing::ElementsAre;

template <typename T>
void expect_reads(TokenType type, const std::vector<T>& tokens, const std::vector<int32_t>& expected) {
  const TempFolder folder;
  const std::string prefix = folder / "set";
  write_file(prefix + ".idx", index_bytes({1, static_cast<int32_t>(tokens.size()) - 1}, type));
  write_file(prefix + ".bin", token_bytes_of(tokens));
  const auto file = open_token_file(prefix);
  EXPECT_EQ(file->token_type(), type);
  EXPECT_EQ(read_tokens(*file, 0, file->num_tokens()), expected) << token_type_name(type);
  EXPECT_EQ(max_token_id(*file), *std::max_element(expected.begin(), expected.end()));
}

TEST(IndexedFile, ReadsEveryIntegerType) {
  expect_reads<uint8_t>(TokenType::kU8, {1, 200, 255}, {1, 200, 255});
  expect_reads<int8_t>(TokenType::kI8, {1, 100, 127}, {1, 100, 127});
  expect_reads<int16_t>(TokenType::kI16, {1, 300, 32767}, {1, 300, 32767});
  expect_reads<int32_t>(TokenType::kI32, {1, 70000, 2147483647}, {1, 70000, 2147483647});
  expect_reads<int64_t>(TokenType::kI64, {1, 70000, 2147483647}, {1, 70000, 2147483647});
  expect_reads<uint16_t>(TokenType::kU16, {1, 300, 65535}, {1, 300, 65535});
}

TEST(IndexedFile, KnowsSequencesAndDocuments) {
  const TempFolder folder;
  const std::string prefix = folder / "set";
  write_counting_pair(prefix, {3, 0, 4, 2});
  write_file(prefix + ".idx", index_bytes({3, 0, 4, 2}, TokenType::kU16, {0, 2, 2, 4}));
  const auto file = open_token_file(prefix);
  EXPECT_EQ(file->num_tokens(), 9);
  ASSERT_EQ(file->num_sequences(), 4);
  EXPECT_EQ(file->sequence_begin(1), 3);
  EXPECT_EQ(file->sequence_begin(2), 3);
  EXPECT_EQ(file->sequence_begin(3), 7);
  EXPECT_EQ(file->sequence_begin(4), 9);
  ASSERT_EQ(file->num_documents(), 3);
  EXPECT_EQ(file->document_begin(1), 2);
  EXPECT_EQ(file->document_begin(3), 4);
  EXPECT_THAT(read_tokens(*file, 2, 3), ElementsAre(2, 3, 4));
}

TEST(IndexedFile, OpensByPrefixIdxOrBin) {
  const TempFolder folder;
  write_counting_pair(folder / "set", {5});
  for (const std::string name : {"set", "set.idx", "set.bin"}) {
    EXPECT_EQ(open_token_file(folder / name)->num_tokens(), 5) << name;
  }
}

TEST(IndexedFile, TakesTextModesAndRefusesOthers) {
  const TempFolder folder;
  write_counting_pair(folder / "set", {2, 3});
  const std::string good = index_bytes({2, 3}, TokenType::kU16);
  write_file(folder / "set.idx", good + std::string("\0\0", 2));
  EXPECT_EQ(open_token_file(folder / "set")->num_tokens(), 5);
  write_file(folder / "set.idx", good + std::string("\0\1", 2));
  expect_error(ErrorCode::kData, {"set.idx", "mode of sequence 1", "expected 0", "found 1"},
               [&] { open_token_file(folder / "set"); });
}

// Case B64: every damage is refused with file, field, expected and found value.
TEST(IndexedFile, RefusesDamage) {
  const TempFolder folder;
  const std::string prefix = folder / "set";
  const std::vector<int32_t> lengths = {3, 5, 2};
  write_counting_pair(prefix, lengths);
  const std::string good = index_bytes(lengths, TokenType::kU16);
  const std::string tokens = read_file(prefix + ".bin");
  const size_t lengths_at = 34;
  const size_t pointers_at = lengths_at + 3 * 4;
  const size_t documents_at = pointers_at + 3 * 8;
  ASSERT_EQ(good.size(), documents_at + 4 * 8);

  struct Damage {
    const char* what;
    std::function<void(std::string& index, std::string& tokens)> make;
    std::vector<std::string> words;
  };
  using S = std::string&;
  const std::vector<Damage> damages = {
      {"bad magic", [](S i, S) { i[3] = 'X'; }, {"set.idx", "magic", "MMIDIDX", "MMIXIDX"}},
      {"old fairseq index", [](S i, S) { i.replace(0, 8, "TNTIDX\0\0", 8); }, {"set.idx", "magic", "fairseq"}},
      {"empty index", [](S i, S) { i.clear(); }, {"set.idx", "magic", "empty"}},
      {"version 2", [](S i, S) { replace_at<uint64_t>(i, 9, 2); }, {"set.idx", "version", "expected 1", "found 2"}},
      {"type 99", [](S i, S) { replace_at<uint8_t>(i, 17, 99); }, {"set.idx", "type code", "found 99"}},
      {"type 0", [](S i, S) { replace_at<uint8_t>(i, 17, 0); }, {"set.idx", "type code", "found 0"}},
      {"float type", [](S i, S) { replace_at<uint8_t>(i, 17, 7); }, {"set.idx", "type code", "floating point"}},
      {"llm.c-only type", [](S i, S) { replace_at<uint8_t>(i, 17, 255); }, {"set.idx", "type code", "found 255"}},
      {"another integer type", [](S i, S) { replace_at<uint8_t>(i, 17, 4); }, {"set.idx", "offset", "expected 12"}},
      {"sequence count + 1",
       [](S i, S) { replace_at<uint64_t>(i, 18, 4); },
       {"set.idx", "file size", "expected 114 bytes for 4 sequences", "found 102"}},
      {"sequence count - 1", [](S i, S) { replace_at<uint64_t>(i, 18, 2); }, {"set.idx", "file size", "found 102"}},
      {"document count + 1",
       [](S i, S) { replace_at<uint64_t>(i, 26, 5); },
       {"set.idx", "file size", "5 document entries"}},
      {"document count 0", [](S i, S) { replace_at<uint64_t>(i, 26, 0); }, {"set.idx", "document count", "found 0"}},
      {"swapped sequence count",
       [](S i, S) { replace_at<uint64_t>(i, 18, __builtin_bswap64(3)); },
       {"set.idx", "sequence count", "big-endian"}},
      {"swapped document count",
       [](S i, S) { replace_at<uint64_t>(i, 26, __builtin_bswap64(4)); },
       {"set.idx", "document count", "big-endian"}},
      {"count that would overflow",
       [](S i, S) { replace_at<uint64_t>(i, 18, ~uint64_t{0}); },
       {"set.idx", "sequence count"}},
      {"cut in the header", [](S i, S) { i.resize(20); }, {"set.idx", "file size", "34 bytes", "found 20"}},
      {"cut before the lengths", [=](S i, S) { i.resize(lengths_at); }, {"set.idx", "sequence count", "found 3"}},
      {"cut before the offsets", [=](S i, S) { i.resize(pointers_at); }, {"set.idx", "sequence count", "found 3"}},
      {"cut before the documents", [=](S i, S) { i.resize(documents_at); }, {"set.idx", "file size", "found 70"}},
      {"one byte short", [](S i, S) { i.pop_back(); }, {"set.idx", "file size", "expected 102", "found 101"}},
      {"one byte long", [](S i, S) { i.push_back(0); }, {"set.idx", "file size", "expected 102", "found 103"}},
      {"negative length",
       [=](S i, S) { replace_at<int32_t>(i, lengths_at + 4, -5); },
       {"set.idx", "length of sequence 1", "found -5"}},
      {"length that does not match",
       [=](S i, S) { replace_at<int32_t>(i, lengths_at, 4); },
       {"set.idx", "offset of sequence 1", "expected 8", "found 6"}},
      {"last length + 1", [=](S i, S) { replace_at<int32_t>(i, lengths_at + 8, 3); }, {"set.bin", "found 20 bytes"}},
      {"negative offset",
       [=](S i, S) { replace_at<int64_t>(i, pointers_at + 8, -6); },
       {"set.idx", "offset of sequence 1", "expected 6", "found -6"}},
      {"last document entry",
       [=](S i, S) { replace_at<int64_t>(i, documents_at + 24, 2); },
       {"set.idx", "last document entry 3", "expected 3", "found 2"}},
      {"last document entry beyond",
       [=](S i, S) { replace_at<int64_t>(i, documents_at + 24, 4); },
       {"set.idx", "last document entry 3", "found 4"}},
      {"first document entry",
       [=](S i, S) { replace_at<int64_t>(i, documents_at, 1); },
       {"set.idx", "first document entry", "expected 0", "found 1"}},
      {"document entries that fall",
       [=](S i, S) {
         replace_at<int64_t>(i, documents_at + 8, 3);
         replace_at<int64_t>(i, documents_at + 16, 1);
       },
       {"set.idx", "document entry 2", "found 1"}},
      {"negative document entry",
       [=](S i, S) { replace_at<int64_t>(i, documents_at + 8, -1); },
       {"set.idx", "document entry 1", "found -1"}},
      {".bin one byte short", [](S, S t) { t.pop_back(); }, {"set.bin", "file size", "expected 20", "found 19"}},
      {".bin one token long", [](S, S t) { t += "xx"; }, {"set.bin", "file size", "expected 20", "found 22"}},
      {".bin empty", [](S, S t) { t.clear(); }, {"set.bin", "file size", "found 0"}},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.what);
    std::string index = good;
    std::string bin = tokens;
    damage.make(index, bin);
    write_file(prefix + ".idx", index);
    write_file(prefix + ".bin", bin);
    expect_error(ErrorCode::kData, damage.words, [&] { open_token_file(prefix); });
  }
}

TEST(IndexedFile, RefusesEveryTruncation) {
  const TempFolder folder;
  const std::string prefix = folder / "set";
  write_counting_pair(prefix, {3, 5, 2});
  const std::string good = read_file(prefix + ".idx");
  for (size_t size = 0; size < good.size(); ++size) {
    write_file(prefix + ".idx", good.substr(0, size));
    SCOPED_TRACE(size);
    expect_error(ErrorCode::kData, {"set.idx"}, [&] { open_token_file(prefix); });
  }
}

// Whatever one wrong byte does, the file is refused, or what is read stays within it.
TEST(IndexedFile, SurvivesEveryWrongByte) {
  const TempFolder folder;
  const std::string prefix = folder / "set";
  write_counting_pair(prefix, {3, 5, 2});
  const std::string good = read_file(prefix + ".idx");
  int accepted = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int change : {1, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ change);
      write_file(prefix + ".idx", bad);
      try {
        const auto file = open_token_file(prefix);
        EXPECT_EQ(read_tokens(*file, 0, file->num_tokens()).size(), 10u);
        ++accepted;
      } catch (const Error& error) {
        EXPECT_EQ(exit_code(error.code()), exit_code(ErrorCode::kData)) << error.what();
      }
    }
  }
  // Entries 1 and 2 of the documents may name other sequences (1 -> 0, 2 -> 3), and a type of the same width passes.
  EXPECT_LE(accepted, 4);
}

TEST(IndexedFile, NamesMissingFiles) {
  const TempFolder folder;
  write_counting_pair(folder / "set", {5});
  std::filesystem::remove(folder / "set.bin");
  expect_error(ErrorCode::kData, {"set.bin", "No such file"}, [&] { open_token_file(folder / "set"); });
  write_counting_pair(folder / "set", {5});
  std::filesystem::remove(folder / "set.idx");
  expect_error(ErrorCode::kData, {"--data-path", "no " + (folder / "set.idx")},
               [&] { open_token_file(folder / "set"); });
  expect_error(ErrorCode::kData, {"--data-path", "other.idx"}, [&] { open_token_file(folder / "other"); });
}

TEST(MappedFile, RefusesAPipeInsteadOfWaitingForItsWriter) {
  const TempFolder folder;
  const std::string path = folder / "pipe.bin";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_error(ErrorCode::kData, {path, "expected a regular file"}, [&] { const MappedFile file(path); });
}

TEST(IndexedFile, NamesIdsBeyondTheVocabulary) {
  const TempFolder folder;
  write_file(folder / "set.idx", index_bytes({4}, TokenType::kI32));
  write_file(folder / "set.bin", token_bytes_of<int32_t>({5, 9, 256, -1}));
  const auto file = open_token_file(folder / "set");
  expect_error(ErrorCode::kData, {"set.bin", "token 2 of 4", "id 256", "vocabulary has 256"},
               [&] { read_tokens(*file, 1, 2, 256); });
  expect_error(ErrorCode::kData, {"token 2", "id 256"}, [&] { check_vocabulary(*file, 256); });
  expect_error(ErrorCode::kData, {"token 3", "id -1"}, [&] { check_vocabulary(*file, 257); });
  EXPECT_THAT(read_tokens(*file, 0, 2, 10), ElementsAre(5, 9));

  write_file(folder / "wide.idx", index_bytes({2}, TokenType::kI64));
  write_file(folder / "wide.bin", token_bytes_of<int64_t>({5, int64_t{1} << 32}));
  expect_error(ErrorCode::kData, {"token 1", "id 4294967296"},
               [&] { max_token_id(*open_token_file(folder / "wide")); });
}

TEST(TokenShards, ReadsBothVersionsAcrossShards) {
  const TempFolder folder;
  write_file(folder / "train_000.bin", shard_header(20240520, 1, 3) + token_bytes_of<uint16_t>({1, 2, 65535}));
  write_file(folder / "train_001.bin", shard_header(20240520, 1, 1) + token_bytes_of<uint16_t>({4}));
  write_file(folder / "train_002.bin", shard_header(20240520, 1, 2) + token_bytes_of<uint16_t>({5, 6}));
  const auto pattern = open_token_file(folder / "train_*.bin");
  EXPECT_EQ(pattern->num_tokens(), 6);
  EXPECT_EQ(pattern->num_sequences(), 1);
  EXPECT_EQ(pattern->sequence_begin(1), 6);
  EXPECT_THAT(read_tokens(*pattern, 0, 6), ElementsAre(1, 2, 65535, 4, 5, 6));
  EXPECT_THAT(read_tokens(*pattern, 2, 3), ElementsAre(65535, 4, 5));
  EXPECT_THAT(read_tokens(*pattern, 5, 1), ElementsAre(6));
  const auto list = open_token_file((folder / "train_002.bin") + "," + (folder / "train_000.bin"));
  EXPECT_THAT(read_tokens(*list, 0, 5), ElementsAre(5, 6, 1, 2, 65535));
  expect_error(ErrorCode::kData, {"train_000.bin", "token 2 of 3", "65535"}, [&] { check_vocabulary(*list, 100); });

  write_file(folder / "llama.bin", shard_header(20240801, 7, 2) + token_bytes_of<uint32_t>({128000, 7}));
  const auto wide = open_token_file(folder / "llama.bin");
  EXPECT_THAT(read_tokens(*wide, 0, 2), ElementsAre(128000, 7));
  expect_error(ErrorCode::kData, {"llama.bin", "token type", "uint16", "uint32"},
               [&] { open_token_file((folder / "train_000.bin") + "," + (folder / "llama.bin")); });
  expect_error(ErrorCode::kData, {"no file matches"}, [&] { open_token_file(folder / "valid_*.bin"); });
}

TEST(TokenShards, RefusesDamage) {
  const TempFolder folder;
  const std::string path = folder / "shard.bin";
  const std::string tokens = token_bytes_of<uint16_t>({1, 2, 3});
  struct Damage {
    std::string bytes;
    std::vector<std::string> words;
  };
  const std::vector<Damage> damages = {
      {"", {"file size", "1024", "found 0"}},
      {shard_header(20240520, 1, 3).substr(0, 1000), {"file size", "found 1000"}},
      {shard_header(20240521, 1, 3) + tokens, {"magic", "20240520", "found 20240521"}},
      {shard_header(20240522, 1, 3) + tokens, {"magic", "evaluation"}},
      {shard_header(static_cast<int32_t>(__builtin_bswap32(20240520)), 1, 3) + tokens, {"magic", "big-endian"}},
      {"BIN.TOK\n" + std::string(2000, '\0'), {"magic", "LLMQ"}},
      {std::string(4000, '\7'), {"magic", "Megatron's .idx"}},
      {shard_header(20240520, 2, 3) + tokens, {"version", "expected 1", "found 2"}},
      {shard_header(20240801, 1, 3) + tokens, {"version", "expected 7", "found 1"}},
      {shard_header(20240520, 1, -1) + tokens, {"token count", "found -1"}},
      {shard_header(20240520, 1, 0), {"token count", "found 0"}},
      {shard_header(20240520, 1, 4) + tokens, {"file size", "expected 1032", "found 1030"}},
      {shard_header(20240520, 1, 2) + tokens, {"file size", "expected 1028", "found 1030"}},
      {shard_header(20240520, 1, 3) + tokens.substr(1), {"file size", "expected 1030", "found 1029"}},
  };
  for (const Damage& damage : damages) {
    write_file(path, damage.bytes);
    std::vector<std::string> words = damage.words;
    words.insert(words.begin(), "shard.bin");
    expect_error(ErrorCode::kData, words, [&] { open_token_file(path); });
  }
}

TEST(Fingerprint, IsAboutContentNotPlace) {
  const TempFolder folder;
  write_counting_pair(folder / "a", {300, 4000});
  std::filesystem::create_directory(folder / "copy");
  std::filesystem::copy(folder / "a.idx", folder / "copy/b.idx");
  std::filesystem::copy(folder / "a.bin", folder / "copy/b.bin");
  const uint64_t original = open_token_file(folder / "a")->fingerprint();
  EXPECT_EQ(open_token_file(folder / "copy/b")->fingerprint(), original);

  std::string tokens = read_file(folder / "a.bin");
  tokens[0] = static_cast<char>(tokens[0] ^ 1);
  write_file(folder / "copy/b.bin", tokens);
  EXPECT_NE(open_token_file(folder / "copy/b")->fingerprint(), original) << "another first token";
  write_counting_pair(folder / "copy/b", {301, 3999});
  EXPECT_NE(open_token_file(folder / "copy/b")->fingerprint(), original) << "other documents";
}

}  // namespace
}  // namespace ashlar
