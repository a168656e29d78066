// Helpers of the data tests: folders that vanish, files from bytes, and index files built by hand from the format's
// description (not by the writer under test).
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/data/batch.h"
#include "runtime/data/token_file.h"

namespace ashlar::data_test {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "ashlar_data_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  size_t num_files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);  // ext4 flushes a file to the disk when it is cut to nothing and written anew
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <typename T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
void replace_at(std::string& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

// An index of these sequence lengths; without `documents`, every sequence is a document.
inline std::string index_bytes(const std::vector<int32_t>& lengths, TokenType type,
                               std::vector<int64_t> documents = {}) {
  if (documents.empty()) {
    for (size_t i = 0; i <= lengths.size(); ++i) {
      documents.push_back(static_cast<int64_t>(i));
    }
  }
  std::string bytes("MMIDIDX\0\0", 9);
  put<uint64_t>(bytes, 1);
  put<uint8_t>(bytes, static_cast<uint8_t>(type));
  put<uint64_t>(bytes, lengths.size());
  put<uint64_t>(bytes, documents.size());
  for (const int32_t length : lengths) {
    put<int32_t>(bytes, length);
  }
  int64_t offset = 0;
  for (const int32_t length : lengths) {
    put<int64_t>(bytes, offset);
    offset += length * static_cast<int64_t>(token_bytes(type));
  }
  for (const int64_t document : documents) {
    put<int64_t>(bytes, document);
  }
  return bytes;
}

template <typename T>
std::string token_bytes_of(const std::vector<T>& tokens) {
  std::string bytes;
  for (const T token : tokens) {
    put<T>(bytes, token);
  }
  return bytes;
}

// Writes a uint16 pair whose tokens are 0, 1, 2, ... over documents of these lengths.
inline void write_counting_pair(const std::string& prefix, const std::vector<int32_t>& lengths) {
  std::vector<uint16_t> tokens;
  for (const int32_t length : lengths) {
    for (int32_t i = 0; i < length; ++i) {
      tokens.push_back(static_cast<uint16_t>(tokens.size()));
    }
  }
  write_file(prefix + ".idx", index_bytes(lengths, TokenType::kU16));
  write_file(prefix + ".bin", token_bytes_of(tokens));
}

inline std::string shard_header(int32_t magic, int32_t version, int32_t count) {
  std::string bytes;
  put<int32_t>(bytes, magic);
  put<int32_t>(bytes, version);
  put<int32_t>(bytes, count);
  bytes.resize(1024);
  return bytes;
}

inline std::vector<int32_t> read_tokens(const TokenFile& file, int64_t first, int64_t count,
                                        int64_t vocab_size = int64_t{1} << 31) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  file.read(first, tokens, vocab_size);
  return tokens;
}

struct Sample {
  std::vector<int32_t> tokens, targets;
  std::vector<float> mask;
};

inline Sample read_sample(const SampleSource& source, int64_t sample) {
  const auto length = static_cast<size_t>(source.seq_length());
  Sample result{std::vector<int32_t>(length), std::vector<int32_t>(length), std::vector<float>(length)};
  source.read(sample, result.tokens, result.targets, result.mask);
  return result;
}

// The action must throw an Error of this code whose message holds all of the words.
inline void expect_error(ErrorCode code, const std::vector<std::string>& words, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.code()), exit_code(code)) << error.what();
    for (const std::string& word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
          << "\"" << word << "\" is not in: " << error.what();
    }
    return;
  }
  ADD_FAILURE() << "no error" << (words.empty() ? "" : " with " + words.back());
}

}  // namespace ashlar::data_test
