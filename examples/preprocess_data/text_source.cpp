#include "examples/preprocess_data/text_source.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"

namespace ashlar::prepare {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr std::string_view kBlanks = " \t\r\n";

void read_whole(InputFile& input, const DocumentSink& sink) {
  std::string text;
  bool more = true;
  while (more) {
    more = input.read(text, kBlockBytes);
    const size_t last_blank = text.find_last_of(kBlanks);
    const size_t ready = !more ? text.size() : last_blank == std::string::npos ? 0 : last_blank + 1;
    sink.text(0, std::string_view(text).substr(0, ready));
    text.erase(0, ready);
  }
  sink.end(0);
}

}  // namespace

InputFile::InputFile(const std::string& path) : name_(path == "-" ? "stdin" : path) {
  file_ = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  REQUIRE(file_ != nullptr, ErrorCode::kData, "--input {}: cannot be opened: {}", path, std::strerror(errno));
  struct stat status {};
  if (::fstat(::fileno(file_), &status) == 0) {
    if (S_ISDIR(status.st_mode)) {
      std::fclose(file_);
      throw Error(ErrorCode::kData, fmt::format("--input {}: expected a file, found a folder", path));
    }
    if (S_ISREG(status.st_mode)) {
      total_bytes_ = status.st_size;
    }
  }
}

InputFile::~InputFile() {
  std::free(line_);
  if (file_ != stdin) {
    std::fclose(file_);
  }
}

bool InputFile::read(std::string& text, size_t bytes) {
  const size_t before = text.size();
  text.resize(before + bytes);
  const size_t found = std::fread(text.data() + before, 1, bytes, file_);
  REQUIRE(std::ferror(file_) == 0, ErrorCode::kData, "{}: reading failed after {} bytes: {}", name_, bytes_read_,
          std::strerror(errno));
  text.resize(before + found);
  bytes_read_ += static_cast<int64_t>(found);
  return found == bytes;
}

bool InputFile::read_line(std::string& line) {
  line.clear();
  const ssize_t found = ::getline(&line_, &line_capacity_, file_);
  if (found > 0) {
    line.assign(line_, static_cast<size_t>(found));
    bytes_read_ += found;
  }
  REQUIRE(std::ferror(file_) == 0, ErrorCode::kData, "{}: reading failed after {} bytes: {}", name_, bytes_read_,
          std::strerror(errno));
  if (line.ends_with('\n')) {
    line.pop_back();
  }
  return found > 0;
}

void read_text(InputFile& input, DocumentEdges edges, const DocumentSink& sink) {
  if (edges == DocumentEdges::kWholeFile) {
    read_whole(input, sink);
    return;
  }
  for (std::string line; input.read_line(line);) {
    const bool blank = line.find_first_not_of(kBlanks) == std::string::npos;
    if (!blank) {
      line.push_back('\n');
      sink.text(0, line);
    }
    if (blank || edges == DocumentEdges::kLines) {
      sink.end(0);
    }
  }
  sink.end(0);
}

void read_jsonl(InputFile& input, const std::vector<std::string>& keys, const DocumentSink& sink) {
  int64_t number = 0;
  for (std::string line; input.read_line(line);) {
    ++number;
    if (line.find_first_not_of(kBlanks) == std::string::npos) {
      continue;
    }
    nlohmann::json object;
    try {
      object = nlohmann::json::parse(line);
    } catch (const nlohmann::json::parse_error& error) {
      throw Error(ErrorCode::kData,
                  fmt::format("{}: line {} is not JSON (one object a line is expected; for plain text give "
                              "--input-format text): {}",
                              input.name(), number, error.what()));
    }
    REQUIRE(object.is_object(), ErrorCode::kData, "{}: line {}: expected a JSON object, found a JSON {}", input.name(),
            number, object.type_name());
    for (size_t output = 0; output < keys.size(); ++output) {
      const auto field = object.find(keys[output]);
      REQUIRE(field != object.end(), ErrorCode::kData, "{}: line {} has no key \"{}\" (--json-keys)", input.name(),
              number, keys[output]);
      REQUIRE(field->is_string(), ErrorCode::kData, "{}: line {}: key \"{}\": expected a string, found a JSON {}",
              input.name(), number, keys[output], field->type_name());
      sink.text(output, field->get_ref<const std::string&>());
      sink.end(output);
    }
  }
}

}  // namespace ashlar::prepare
