#include "runtime/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/checkpoint/safetensors.h"

namespace ashlar {
namespace fs = std::filesystem;

namespace {

using nlohmann::json;

constexpr const char* kFormat = "ashlar checkpoint";
constexpr int kVersion = 2;

std::string hash_text(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

uint64_t parse_hash(const std::string& text, const std::string& place) {
  uint64_t hash = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  REQUIRE(text.size() == 16 && code == std::errc() && end == text.data() + text.size(), ErrorCode::kCheckpoint,
          "{}: expected a hash of 16 hex digits, found \"{}\"", place, text);
  return hash;
}

std::string hash_line(const std::string& manifest) {
  return fmt::format("XXH3 (manifest.json) = {}\n", hash_text(hash_bytes(manifest.data(), manifest.size())));
}

json to_json(const StoredTensor& tensor) {
  json shape = json::array();
  for (int dim = 0; dim < tensor.shape.num_dims(); ++dim) {
    shape.push_back(tensor.shape[dim]);
  }
  json slices = json::array();
  for (const StoredSlice& slice : tensor.slices) {
    json hashes = json::array();
    for (const uint64_t hash : slice.hashes) {
      hashes.push_back(hash_text(hash));
    }
    slices.push_back({{"file", slice.file},
                      {"offset", slice.offset},
                      {"start", slice.start},
                      {"size", slice.size},
                      {"begin", slice.begin},
                      {"end", slice.end},
                      {"hashes", std::move(hashes)}});
  }
  return {{"dtype", safetensors_dtype(tensor.dtype)},
          {"shape", std::move(shape)},
          {"split_dim", tensor.split_dim},
          {"slices", std::move(slices)}};
}

// Elements of what a rank holds of a tensor, without padding.
int64_t num_held(const StoredTensor& tensor, int64_t size) {
  Shape held = tensor.shape;
  if (tensor.split_dim >= 0) {
    held.set(tensor.split_dim, size);
  }
  return held.num_elements();
}

StoredTensor tensor_from_json(const json& value, int version, const std::string& place) {
  StoredTensor tensor;
  const std::string dtype = value.at("dtype").get<std::string>();
  const std::optional<DType> known = dtype_of_safetensors(dtype);
  REQUIRE(known.has_value(), ErrorCode::kCheckpoint, "{}: unknown dtype \"{}\"", place, dtype);
  tensor.dtype = *known;
  for (const json& size : value.at("shape")) {
    tensor.shape.append(size.get<int64_t>());
  }
  tensor.split_dim = value.at("split_dim").get<int>();
  REQUIRE(tensor.split_dim >= -1 && tensor.split_dim < tensor.shape.num_dims(), ErrorCode::kCheckpoint,
          "{}: expected a split_dim of {}, found {}", place, tensor.shape.text(), tensor.split_dim);
  for (const json& entry : value.at("slices")) {
    StoredSlice slice{.file = entry.at("file").get<std::string>(),
                      .offset = entry.at("offset").get<uint64_t>(),
                      .start = entry.at("start").get<int64_t>(),
                      .size = entry.at("size").get<int64_t>()};
    if (version == 1) {
      slice.end = num_held(tensor, slice.size);
      slice.hashes = {parse_hash(entry.at("hash").get<std::string>(), place)};
    } else {
      slice.begin = entry.at("begin").get<int64_t>();
      slice.end = entry.at("end").get<int64_t>();
      for (const json& hash : entry.at("hashes")) {
        slice.hashes.push_back(parse_hash(hash.get<std::string>(), place));
      }
    }
    tensor.slices.push_back(std::move(slice));
  }
  return tensor;
}

// Slices of one start must share one size and follow each other without gaps; so must the starts.
void check_cover(StoredTensor& tensor, const std::string& place) {
  std::sort(tensor.slices.begin(), tensor.slices.end(), [](const StoredSlice& a, const StoredSlice& b) {
    return std::pair(a.start, a.begin) < std::pair(b.start, b.begin);
  });
  const int64_t end = tensor.split_dim < 0 ? 0 : tensor.shape[tensor.split_dim];
  int64_t start = 0;
  size_t at = 0;
  do {
    const int64_t size = at < tensor.slices.size() && tensor.slices[at].start == start ? tensor.slices[at].size : 0;
    int64_t covered = 0;
    for (; at < tensor.slices.size() && tensor.slices[at].start == start; ++at) {
      const StoredSlice& slice = tensor.slices[at];
      REQUIRE(slice.size == size && size >= 0 && size <= end - start && slice.begin == covered && slice.end > covered,
              ErrorCode::kCheckpoint,
              "{}: {} at {} along dim {} of {}: expected one that begins at element {} of {} indices, found [{}, {}) "
              "of {} in {}",
              place, slice.begin > covered ? "a slice is missing" : "slices overlap", start, tensor.split_dim,
              tensor.shape.text(), covered, size, slice.begin, slice.end, slice.size, slice.file);
      covered = slice.end;
    }
    const int64_t expected = num_held(tensor, size);
    REQUIRE(covered == expected && (size > 0 || start == end), ErrorCode::kCheckpoint,
            "{}: a slice is missing at {} along dim {} of {}: those of {} indices there end at element {}", place,
            start, tensor.split_dim, tensor.shape.text(), size, covered);
    start += size;
  } while (start < end);
  REQUIRE(at == tensor.slices.size(), ErrorCode::kCheckpoint,
          "{}: slices overlap along dim {} of {}: found one at {} in {}", place, tensor.split_dim, tensor.shape.text(),
          at < tensor.slices.size() ? tensor.slices[at].start : 0,
          at < tensor.slices.size() ? tensor.slices[at].file : "");
}

void check_tensor(const Manifest& manifest, StoredTensor& tensor, const std::string& place) {
  check_cover(tensor, place);
  for (const StoredSlice& slice : tensor.slices) {
    const uint64_t bytes = tensor.slice_bytes(slice);
    const auto file = manifest.files.find(slice.file);
    REQUIRE(file != manifest.files.end() && slice.offset <= file->second.bytes &&
                bytes <= file->second.bytes - slice.offset,
            ErrorCode::kCheckpoint, "{}: its slice at byte {} lies outside of file \"{}\"", place, slice.offset,
            slice.file);
    const uint64_t num_blocks = (bytes - 1) / manifest.hash_block_bytes + 1;
    REQUIRE(slice.hashes.size() == num_blocks, ErrorCode::kCheckpoint,
            "{}: its slice at byte {} of {}: expected {} hashes, found {}", place, slice.offset, slice.file, num_blocks,
            slice.hashes.size());
  }
}

}  // namespace

uint64_t StoredTensor::slice_bytes(const StoredSlice& slice) const {
  return static_cast<uint64_t>(slice.end - slice.begin) * dtype_bytes(dtype);
}

TensorPiece StoredTensor::piece(const StoredSlice& slice) const {
  return {shape, split_dim, slice.start, slice.size, slice.begin, slice.end};
}

std::vector<uint64_t> hash_blocks(const std::byte* data, uint64_t bytes, uint64_t block_bytes) {
  std::vector<uint64_t> hashes;
  for (uint64_t begin = 0; begin < bytes; begin += block_bytes) {
    hashes.push_back(hash_bytes(data + begin, std::min(block_bytes, bytes - begin)));
  }
  return hashes;
}

std::string manifest_text(const Manifest& manifest) {
  json files = json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = {
        {"bytes", file.bytes}, {"header_bytes", file.header_bytes}, {"header_hash", hash_text(file.header_hash)}};
  }
  json tensors = json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    tensors[name] = to_json(tensor);
  }
  const json document = {{"format", kFormat},
                         {"version", kVersion},
                         {"iteration", manifest.iteration},
                         {"num_ranks", manifest.num_ranks},
                         {"state", manifest.state},
                         {"hash_block_bytes", manifest.hash_block_bytes},
                         {"files", std::move(files)},
                         {"tensors", std::move(tensors)}};
  return document.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& place) {
  try {
    const json document = json::parse(text);
    const json& version = document.at("version");
    REQUIRE(document.at("format") == kFormat && (version == 1 || version == kVersion), ErrorCode::kCheckpoint,
            "{}: expected format \"{}\" version 1 or {}, found {} version {}", place, kFormat, kVersion,
            document.at("format").dump(), version.dump());
    Manifest manifest;
    if (version != 1) {
      manifest.hash_block_bytes = document.at("hash_block_bytes").get<uint64_t>();
      REQUIRE(manifest.hash_block_bytes > 0 && manifest.hash_block_bytes % 8 == 0, ErrorCode::kCheckpoint,
              "{}: expected hash_block_bytes in multiples of 8, found {}", place, manifest.hash_block_bytes);
    }
    manifest.iteration = document.at("iteration").get<int64_t>();
    manifest.num_ranks = document.at("num_ranks").get<int>();
    manifest.state = document.at("state");
    for (const auto& [name, file] : document.at("files").items()) {
      REQUIRE(name.find('/') == std::string::npos, ErrorCode::kCheckpoint, "{}: \"{}\" is not a plain file name", place,
              name);
      manifest.files[name] = {file.at("bytes").get<uint64_t>(), file.at("header_bytes").get<uint64_t>(),
                              parse_hash(file.at("header_hash").get<std::string>(), place)};
    }
    for (const auto& [name, tensor] : document.at("tensors").items()) {
      manifest.tensors[name] =
          tensor_from_json(tensor, version.get<int>(), fmt::format("{}: tensor \"{}\"", place, name));
    }
    return manifest;
  } catch (const json::exception& problem) {
    throw Error(ErrorCode::kCheckpoint, fmt::format("{} is not a manifest: {}", place, problem.what()));
  }
}

void merge_manifest(Manifest& into, const Manifest& other, const std::string& place) {
  into.files.insert(other.files.begin(), other.files.end());
  for (const auto& [name, tensor] : other.tensors) {
    const auto [found, is_new] = into.tensors.try_emplace(name, tensor);
    StoredTensor& known = found->second;
    if (is_new) {
      continue;
    }
    REQUIRE(known.dtype == tensor.dtype && known.shape == tensor.shape && known.split_dim == tensor.split_dim,
            ErrorCode::kCheckpoint, "{}: ranks disagree about tensor \"{}\": {} {} split along {}, and {} {} along {}",
            place, name, dtype_name(known.dtype), known.shape.text(), known.split_dim, dtype_name(tensor.dtype),
            tensor.shape.text(), tensor.split_dim);
    known.slices.insert(known.slices.end(), tensor.slices.begin(), tensor.slices.end());
  }
}

void check_manifest(Manifest& manifest, const std::string& place) {
  for (auto& [name, tensor] : manifest.tensors) {
    check_tensor(manifest, tensor, fmt::format("{}: tensor \"{}\"", place, name));
  }
}

void write_manifest(Storage& storage, const fs::path& directory, const Manifest& manifest) {
  const std::string text = manifest_text(manifest);
  storage.write_file(directory / "manifest.json", text);
  storage.write_file(directory / "manifest.xxh3", hash_line(text));
}

Manifest read_manifest(const fs::path& directory, int64_t iteration) {
  const std::string place = (directory / "manifest.json").string();
  const std::string text = read_file(directory / "manifest.json");
  const std::string expected = read_file(directory / "manifest.xxh3");
  const std::string found = hash_line(text);
  REQUIRE(found == expected, ErrorCode::kCheckpoint,
          "{} is damaged: manifest.xxh3 says \"{}\", its contents give \"{}\"", place,
          expected.substr(0, expected.find('\n')), found.substr(0, found.find('\n')));
  Manifest manifest = parse_manifest(text, place);
  REQUIRE(manifest.iteration == iteration, ErrorCode::kCheckpoint,
          "{}: expected the manifest of iteration {}, found that of {}", place, iteration, manifest.iteration);
  check_manifest(manifest, place);
  for (const auto& [name, file] : manifest.files) {
    const InputFile stored(directory / name);
    REQUIRE(stored.bytes() == file.bytes, ErrorCode::kCheckpoint, "{}: expected {} bytes, found {}",
            stored.path().string(), file.bytes, stored.bytes());
  }
  return manifest;
}

}  // namespace ashlar
