#include "runtime/data/token_file_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

std::filesystem::path folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

// A rename is only certain to survive a power cut when its folder is flushed as well.
void sync_folder_of(const std::string& path) {
  const std::string folder = folder_of(path).string();
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file >= 0) {
    ::fsync(file);
    ::close(file);
  }
}

// Checks before any file is made, and hands the prefix through.
std::string checked_output(std::string prefix, bool overwrite) {
  std::error_code ignored;
  const std::filesystem::path folder = folder_of(prefix);
  REQUIRE(std::filesystem::is_directory(folder, ignored), ErrorCode::kUsage,
          "--output-prefix {}: the folder {} does not exist; make it first", prefix, folder.string());
  for (const char* ending : {".idx", ".bin"}) {
    REQUIRE(overwrite || !std::filesystem::exists(prefix + ending, ignored), ErrorCode::kUsage,
            "{}{} exists already; give --overwrite to replace it, or another --output-prefix", prefix, ending);
  }
  return prefix;
}

template <typename T>
void encode_as(std::span<const int32_t> tokens, int64_t vocab_size, std::vector<std::byte>& encoded) {
  encoded.resize(tokens.size() * sizeof(T));
  for (size_t i = 0; i < tokens.size(); ++i) {
    DCHECK(tokens[i] >= 0 && tokens[i] < vocab_size, "token id {} with {} ids", tokens[i], vocab_size);
    const T stored = static_cast<T>(tokens[i]);
    std::memcpy(encoded.data() + i * sizeof(T), &stored, sizeof(T));
  }
}

template <typename T>
void put(TokenOutputFile& file, T value) {
  file.write(&value, sizeof(value));
}

}  // namespace

TokenOutputFile::TokenOutputFile(std::string path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  REQUIRE(file_ >= 0, ErrorCode::kData, "{}: cannot be written: {}", path_, std::strerror(errno));
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    ::close(file_);
    throw Error(ErrorCode::kData, fmt::format("{}: another process is writing this file", path_));
  }
  if (::ftruncate(file_, 0) != 0) {  // what a killed run left behind
    const int reason = errno;
    ::close(file_);
    throw Error(ErrorCode::kData, fmt::format("{}: cannot be written: {}", path_, std::strerror(reason)));
  }
  buffer_.reserve(kBufferBytes);
}

TokenOutputFile::~TokenOutputFile() {
  if (!committed_) {
    ::unlink(path_.c_str());
  }
  ::close(file_);
}

void TokenOutputFile::fail(const char* what) const {
  throw Error(ErrorCode::kData, fmt::format("{}: {}: {}", path_, what, std::strerror(errno)));
}

void TokenOutputFile::write(const void* bytes, size_t count) {
  const auto* from = static_cast<const std::byte*>(bytes);
  while (count > 0) {
    const size_t part = std::min(count, kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), from, from + part);
    from += part;
    count -= part;
    if (buffer_.size() == kBufferBytes) {
      flush();
    }
  }
}

void TokenOutputFile::flush() {
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t written = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno != EINTR) {
      fail("writing failed");
    }
  }
  buffer_.clear();
}

void TokenOutputFile::sync() {
  flush();
  if (::fsync(file_) != 0) {
    fail("flushing to the disk failed");
  }
}

void TokenOutputFile::commit_as(const std::string& final_path) {
  if (::rename(path_.c_str(), final_path.c_str()) != 0) {
    fail("renaming to the final name failed");
  }
  committed_ = true;
}

TokenFileWriter::TokenFileWriter(std::string prefix, int64_t vocab_size, bool overwrite, int64_t max_sequence_tokens)
    : prefix_(checked_output(std::move(prefix), overwrite)),
      type_(smallest_token_type(vocab_size)),
      vocab_size_(vocab_size),
      max_sequence_tokens_(max_sequence_tokens),
      tokens_(prefix_ + ".bin.tmp"),
      index_(prefix_ + ".idx.tmp"),
      document_entries_{0} {}

void TokenFileWriter::append(std::span<const int32_t> tokens) {
  while (!tokens.empty()) {
    if (current_length_ == max_sequence_tokens_) {
      end_sequence();
    }
    const size_t room = static_cast<size_t>(max_sequence_tokens_ - current_length_);
    const std::span<const int32_t> part = tokens.first(std::min(tokens.size(), room));
    if (type_ == TokenType::kU16) {
      encode_as<uint16_t>(part, vocab_size_, encoded_);
    } else {
      encode_as<int32_t>(part, vocab_size_, encoded_);
    }
    tokens_.write(encoded_.data(), encoded_.size());
    current_length_ += std::ssize(part);
    num_tokens_ += std::ssize(part);
    tokens = tokens.subspan(part.size());
  }
}

void TokenFileWriter::end_sequence() {
  lengths_.push_back(static_cast<int32_t>(current_length_));
  current_length_ = 0;
}

bool TokenFileWriter::end_document() {
  if (current_length_ == 0) {
    return false;
  }
  end_sequence();
  document_entries_.push_back(std::ssize(lengths_));
  return true;
}

void TokenFileWriter::finish() {
  DCHECK(current_length_ == 0, "{}: a document is open", prefix_);
  index_.write("MMIDIDX\0\0", 9);
  put<uint64_t>(index_, 1);
  put<uint8_t>(index_, static_cast<uint8_t>(type_));
  put<uint64_t>(index_, lengths_.size());
  put<uint64_t>(index_, document_entries_.size());
  index_.write(lengths_.data(), lengths_.size() * sizeof(int32_t));
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    put<int64_t>(index_, offset);
    offset += length * static_cast<int64_t>(token_bytes(type_));
  }
  index_.write(document_entries_.data(), document_entries_.size() * sizeof(int64_t));
  tokens_.sync();
  index_.sync();
  // When an old pair is replaced, its index goes first: a crash in between leaves no index, never a mixed pair.
  const std::string final_index = prefix_ + ".idx";
  REQUIRE(::unlink(final_index.c_str()) == 0 || errno == ENOENT, ErrorCode::kData, "{}: cannot be replaced: {}",
          final_index, std::strerror(errno));
  sync_folder_of(prefix_);
  tokens_.commit_as(prefix_ + ".bin");
  index_.commit_as(final_index);
  sync_folder_of(prefix_);
}

}  // namespace ashlar
