// The documents of an input, read piece by piece: a file of any size needs little memory.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::prepare {

// An input file or stdin ("-"), read in large blocks.
class InputFile {
 public:
  // Throws Error(kData) when it cannot be read.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Blocks the host. Appends up to `bytes`; returns false at the end of the file.
  bool read(std::string& text, size_t bytes);
  // Blocks the host. The next line without its end; returns false when there is none.
  bool read_line(std::string& line);

  const std::string& name() const { return name_; }
  int64_t bytes_read() const { return bytes_read_; }
  int64_t total_bytes() const { return total_bytes_; }  // -1: not known (a pipe)

 private:
  std::string name_;
  std::FILE* file_ = nullptr;
  char* line_ = nullptr;  // getline's buffer
  size_t line_capacity_ = 0;
  int64_t bytes_read_ = 0;
  int64_t total_bytes_ = -1;
};

enum class DocumentEdges { kWholeFile, kBlankLines, kLines };

// What a source calls: a piece of the current document of one output, and the document's end.
struct DocumentSink {
  std::function<void(size_t output, std::string_view text)> text;
  std::function<void(size_t output)> end;
};

// Plain text, any bytes. Pieces of a long document end at a blank, so that no word is torn.
void read_text(InputFile& input, DocumentEdges edges, const DocumentSink& sink);

// One JSON object a line; output i gets the string under keys[i]. Throws Error(kData) naming the line.
void read_jsonl(InputFile& input, const std::vector<std::string>& keys, const DocumentSink& sink);

}  // namespace ashlar::prepare
