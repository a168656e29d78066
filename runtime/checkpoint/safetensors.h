// The safetensors container: u64 header length, a JSON header, then the tensors' bytes, row-major, little endian.
// Layout of the format: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/shape.h"
#include "runtime/checkpoint/storage.h"

namespace ashlar {

std::string_view safetensors_dtype(DType dtype);                   // Pure. "F32", "BF16", ...
std::optional<DType> dtype_of_safetensors(std::string_view name);  // Pure. Empty for the ones the runtime lacks.

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;

  uint64_t bytes() const { return static_cast<uint64_t>(shape.num_elements()) * dtype_bytes(dtype); }
};

// Where everything lies in a file that is about to be written.
struct SafetensorsLayout {
  std::string header;             // the length and the JSON, as they stand at the start of the file
  std::vector<uint64_t> offsets;  // of each entry's first byte, from the start of the file
  uint64_t file_bytes = 0;
};

// Pure. Entries lie one after another in the given order; the header is padded so that the data starts at a multiple
// of 8. Throws Error(kInternal) when two entries have one name.
SafetensorsLayout lay_out_safetensors(std::span<const SafetensorsEntry> entries,
                                      const std::map<std::string, std::string>& metadata);

// A file opened for reading, its header checked field by field.
class SafetensorsFile {
 public:
  struct Tensor {
    std::string dtype;  // as the file spells it
    Shape shape;
    uint64_t offset = 0;  // from the start of the file
    uint64_t bytes = 0;
  };

  // Blocks the host. Throws Error(kCheckpoint) naming file, tensor, expected and found for a header that is longer than
  // the file, not JSON, or whose tensors overlap, leave gaps, lie outside of the file, have an unknown dtype or a size
  // that is not their shape's.
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const Tensor& find(const std::string& name) const;  // throws when absent

  // Blocks the host. Bytes [begin, begin + bytes) of a tensor.
  void read(const Tensor& tensor, uint64_t begin, void* data, size_t bytes) const;

 private:
  void check_layout(uint64_t data_begin) const;

  InputFile file_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace ashlar
