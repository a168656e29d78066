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
constexpr int kVersion = 1;

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
    slices.push_back({{"file", slice.file},
                      {"offset", slice.offset},
                      {"start", slice.start},
                      {"size", slice.size},
                      {"hash", hash_text(slice.hash)}});
  }
  return {{"dtype", safetensors_dtype(tensor.dtype)},
          {"shape", std::move(shape)},
          {"split_dim", tensor.split_dim},
          {"slices", std::move(slices)}};
}

StoredTensor tensor_from_json(const json& value, const std::string& place) {
  StoredTensor tensor;
  const std::string dtype = value.at("dtype").get<std::string>();
  const std::optional<DType> known = dtype_of_safetensors(dtype);
  REQUIRE(known.has_value(), ErrorCode::kCheckpoint, "{}: unknown dtype \"{}\"", place, dtype);
  tensor.dtype = *known;
  for (const json& size : value.at("shape")) {
    tensor.shape.append(size.get<int64_t>());
  }
  tensor.split_dim = value.at("split_dim").get<int>();
  for (const json& entry : value.at("slices")) {
    tensor.slices.push_back({entry.at("file").get<std::string>(), entry.at("offset").get<uint64_t>(),
                             entry.at("start").get<int64_t>(), entry.at("size").get<int64_t>(),
                             parse_hash(entry.at("hash").get<std::string>(), place)});
  }
  return tensor;
}

void check_tensor(const Manifest& manifest, StoredTensor& tensor, const std::string& place) {
  REQUIRE(tensor.split_dim >= -1 && tensor.split_dim < tensor.shape.num_dims(), ErrorCode::kCheckpoint,
          "{}: split dim {} of a tensor of shape {}", place, tensor.split_dim, tensor.shape.text());
  std::sort(tensor.slices.begin(), tensor.slices.end(),
            [](const StoredSlice& a, const StoredSlice& b) { return a.start < b.start; });
  if (tensor.split_dim < 0) {
    REQUIRE(tensor.slices.size() == 1, ErrorCode::kCheckpoint,
            "{}: expected one slice of this unsplit tensor, found {}", place, tensor.slices.size());
  } else {
    int64_t expected = 0;
    for (const StoredSlice& slice : tensor.slices) {
      REQUIRE(slice.start == expected && slice.size > 0, ErrorCode::kCheckpoint,
              "{}: {} along dim {} of {}: expected a slice that starts at {}, found [{}, {}) in {}", place,
              slice.start > expected ? "a slice is missing" : "slices overlap", tensor.split_dim, tensor.shape.text(),
              expected, slice.start, slice.start + slice.size, slice.file);
      expected += slice.size;
    }
    REQUIRE(expected == tensor.shape[tensor.split_dim], ErrorCode::kCheckpoint,
            "{}: a slice is missing along dim {} of {}: the slices end at {}", place, tensor.split_dim,
            tensor.shape.text(), expected);
  }
  for (const StoredSlice& slice : tensor.slices) {
    const auto file = manifest.files.find(slice.file);
    REQUIRE(file != manifest.files.end() && slice.offset <= file->second.bytes &&
                tensor.slice_bytes(slice) <= file->second.bytes - slice.offset,
            ErrorCode::kCheckpoint, "{}: its slice at byte {} lies outside of file \"{}\"", place, slice.offset,
            slice.file);
  }
}

}  // namespace

uint64_t StoredTensor::slice_bytes(const StoredSlice& slice) const {
  Shape held = shape;
  if (split_dim >= 0) {
    held.set(split_dim, slice.size);
  }
  return static_cast<uint64_t>(held.num_elements()) * dtype_bytes(dtype);
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
                         {"files", std::move(files)},
                         {"tensors", std::move(tensors)}};
  return document.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& place) {
  try {
    const json document = json::parse(text);
    REQUIRE(document.at("format") == kFormat && document.at("version") == kVersion, ErrorCode::kCheckpoint,
            "{}: expected format \"{}\" version {}, found {} version {}", place, kFormat, kVersion,
            document.at("format").dump(), document.at("version").dump());
    Manifest manifest;
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
      manifest.tensors[name] = tensor_from_json(tensor, fmt::format("{}: tensor \"{}\"", place, name));
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
