#include "runtime/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "runtime/base/error.h"

namespace ashlar {

static_assert(std::endian::native == std::endian::little,
              "safetensors files are little endian, and copied as they are");

namespace {

using nlohmann::json;

// Above every real header (GPT-3's has about 200 kB), so that a foreign file is refused before its "header" is read.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct DTypeEntry {
  std::string_view name;
  uint64_t bytes;
  std::optional<DType> dtype;
};

// Dtypes of the format. The runtime has no use for the ones without a DType, but a file may hold a mask in one of them.
constexpr DTypeEntry kDTypes[] = {{"F32", 4, DType::kF32},  {"BF16", 2, DType::kBF16},    {"F16", 2, DType::kF16},
                                  {"F64", 8, DType::kF64},  {"I32", 4, DType::kI32},      {"I64", 8, DType::kI64},
                                  {"U8", 1, DType::kU8},    {"BOOL", 1, std::nullopt},    {"I8", 1, std::nullopt},
                                  {"I16", 2, std::nullopt}, {"U16", 2, std::nullopt},     {"U32", 4, std::nullopt},
                                  {"U64", 8, std::nullopt}, {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt}};

const DTypeEntry* find_dtype(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const auto& e) { return e.name == name; });
  return found == std::end(kDTypes) ? nullptr : found;
}

// One tensor of the header. Offsets in the header count from the end of the header.
SafetensorsFile::Tensor parse_tensor(const std::string& path, const std::string& name, const json& value,
                                     uint64_t data_begin, uint64_t data_bytes) {
  const auto fail = [&](const std::string& expected, const std::string& found) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{}: tensor \"{}\": expected {}, found {}", path, name, expected, found));
  };
  const auto field = [&](const char* key) -> const json& {
    if (!value.is_object() || !value.contains(key)) {
      fail(fmt::format("a field \"{}\"", key), value.dump());
    }
    return value.at(key);
  };
  SafetensorsFile::Tensor tensor;

  const json& dtype = field("dtype");
  const DTypeEntry* known = dtype.is_string() ? find_dtype(dtype.get<std::string>()) : nullptr;
  if (known == nullptr) {
    fail("a dtype of the format (F32, BF16, F16, F64, I32, I64, U8, ...)", dtype.dump());
    return tensor;
  }
  tensor.dtype = known->name;

  const json& shape = field("shape");
  if (!shape.is_array() || shape.size() > Shape::kMaxDims) {
    fail(fmt::format("a shape of at most {} sizes", Shape::kMaxDims), shape.dump());
  }
  uint64_t bytes = known->bytes;
  for (const json& size : shape) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX ||
        __builtin_mul_overflow(bytes, size.get<uint64_t>(), &bytes)) {
      fail("a shape of sizes that fit in memory", shape.dump());
    }
    tensor.shape.append(size.get<int64_t>());
  }

  const json& range = field("data_offsets");
  if (!range.is_array() || range.size() != 2 || !range[0].is_number_unsigned() || !range[1].is_number_unsigned()) {
    fail("data_offsets [begin, end]", range.dump());
  }
  const uint64_t begin = range[0].get<uint64_t>();
  const uint64_t end = range[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    fail(fmt::format("data_offsets within the file's {} bytes of data", data_bytes), range.dump());
  }
  if (end - begin != bytes) {
    fail(fmt::format("{} bytes for {} {}", bytes, tensor.dtype, tensor.shape.text()),
         fmt::format("{} bytes ({})", end - begin, range.dump()));
  }
  tensor.offset = data_begin + begin;
  tensor.bytes = bytes;
  return tensor;
}

}  // namespace

std::string_view safetensors_dtype(DType dtype) {
  const auto* found =
      std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const auto& e) { return e.dtype == dtype; });
  DCHECK(found != std::end(kDTypes), "{}", dtype_name(dtype));
  return found->name;
}

std::optional<DType> dtype_of_safetensors(std::string_view name) {
  const DTypeEntry* found = find_dtype(name);
  return found == nullptr ? std::nullopt : found->dtype;
}

SafetensorsLayout lay_out_safetensors(std::span<const SafetensorsEntry> entries,
                                      const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  uint64_t position = 0;
  std::vector<uint64_t> begins;
  for (const SafetensorsEntry& entry : entries) {
    DCHECK(!header.contains(entry.name), "two tensors named \"{}\" in one file", entry.name);
    std::vector<int64_t> shape;
    for (int dim = 0; dim < entry.shape.num_dims(); ++dim) {
      shape.push_back(entry.shape[dim]);
    }
    header[entry.name] = {{"dtype", safetensors_dtype(entry.dtype)},
                          {"shape", shape},
                          {"data_offsets", {position, position + entry.bytes()}}};
    begins.push_back(position);
    position += entry.bytes();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();

  SafetensorsLayout layout;
  layout.header.resize(sizeof length);
  std::memcpy(layout.header.data(), &length, sizeof length);
  layout.header += text;
  for (const uint64_t begin : begins) {
    layout.offsets.push_back(layout.header.size() + begin);
  }
  layout.file_bytes = layout.header.size() + position;
  return layout;
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : file_(std::move(path)) {
  const std::string name = file_.path().string();
  uint64_t length = 0;
  REQUIRE(file_.bytes() >= sizeof length, ErrorCode::kCheckpoint,
          "{} is not a safetensors file: expected at least 8 bytes, found {}", name, file_.bytes());
  file_.read_at(0, &length, sizeof length);
  REQUIRE(length <= kMaxHeaderBytes && length <= file_.bytes() - sizeof length, ErrorCode::kCheckpoint,
          "{} is cut short or not a safetensors file: its header should have {} bytes, the file has {}", name, length,
          file_.bytes());
  std::string text(length, '\0');
  file_.read_at(sizeof length, text.data(), text.size());
  const json header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  REQUIRE(header.is_object(), ErrorCode::kCheckpoint,
          "{}: the safetensors header is damaged: expected a JSON object, found {} bytes that are none", name, length);

  const uint64_t data_begin = sizeof length + length;
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") {
      REQUIRE(value.is_object() && std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_string(); }),
              ErrorCode::kCheckpoint, "{}: __metadata__: expected an object of strings, found {}", name, value.dump());
      metadata_ = value.get<std::map<std::string, std::string>>();
    } else {
      tensors_.emplace(key, parse_tensor(name, key, value, data_begin, file_.bytes() - data_begin));
    }
  }
  check_layout(data_begin);
}

void SafetensorsFile::check_layout(uint64_t data_begin) const {
  std::vector<std::pair<uint64_t, const std::string*>> order;
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.bytes > 0) {
      order.emplace_back(tensor.offset, &name);
    }
  }
  std::sort(order.begin(), order.end());
  uint64_t expected = data_begin;
  for (const auto& [offset, name] : order) {
    REQUIRE(offset == expected, ErrorCode::kCheckpoint,
            "{}: tensor \"{}\" {}: expected it at byte {} of the data, found {}", path().string(), *name,
            offset < expected ? "overlaps the one before it" : "lies behind a gap", expected - data_begin,
            offset - data_begin);
    expected += tensors_.at(*name).bytes;
  }
  REQUIRE(expected == file_.bytes(), ErrorCode::kCheckpoint, "{}: the tensors end at byte {}, the file at byte {}",
          path().string(), expected, file_.bytes());
}

const SafetensorsFile::Tensor& SafetensorsFile::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  REQUIRE(found != tensors_.end(), ErrorCode::kCheckpoint, "{} has no tensor \"{}\"; it has {} others", path().string(),
          name, tensors_.size());
  return found->second;
}

void SafetensorsFile::read(const Tensor& tensor, uint64_t begin, void* data, size_t bytes) const {
  DCHECK(begin <= tensor.bytes && bytes <= tensor.bytes - begin, "bytes [{}, +{}) of {}", begin, bytes, tensor.bytes);
  file_.read_at(tensor.offset + begin, data, bytes);
}

}  // namespace ashlar
