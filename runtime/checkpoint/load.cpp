#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {
namespace fs = std::filesystem;

namespace {

// Below every usual limit of open files, and above the number of files that one rank reads in turn on most grids.
constexpr size_t kMaxOpenFiles = 64;

// Reads slices out of the files of one checkpoint, block by block, each checked when it is read.
class SliceReader {
 public:
  SliceReader(const Manifest& manifest, fs::path directory) : manifest_(manifest), directory_(std::move(directory)) {}

  // The bytes of the block of a stored slice that begins at byte `begin` of it, valid until the next call.
  const std::byte* read(const std::string& name, const StoredTensor& tensor, const StoredSlice& slice, uint64_t begin) {
    const uint64_t offset = slice.offset + begin;
    if (slice.file == last_file_ && offset == last_offset_) {
      return data_.data();
    }
    last_file_.clear();
    const InputFile& file = open(slice.file);
    data_.resize(std::min(manifest_.hash_block_bytes, tensor.slice_bytes(slice) - begin));
    file.read_at(offset, data_.data(), data_.size());
    const uint64_t expected = slice.hashes.at(begin / manifest_.hash_block_bytes);
    const uint64_t found = hash_bytes(data_.data(), data_.size());
    REQUIRE(found == expected, ErrorCode::kCheckpoint,
            "{} is damaged: tensor \"{}\", bytes [{}, {}): expected hash {:016x}, found {:016x}", file.path().string(),
            name, offset, offset + data_.size(), expected, found);
    last_file_ = slice.file;
    last_offset_ = offset;
    return data_.data();
  }

 private:
  const InputFile& open(const std::string& name) {
    const auto known = files_.find(name);
    if (known != files_.end()) {
      return known->second;
    }
    if (files_.size() >= kMaxOpenFiles) {
      files_.clear();
    }
    const InputFile& file = files_.try_emplace(name, directory_ / name).first->second;
    const StoredFile& expected = manifest_.files.at(name);
    std::string header(expected.header_bytes, '\0');
    file.read_at(0, header.data(), header.size());
    const uint64_t found = hash_bytes(header.data(), header.size());
    REQUIRE(found == expected.header_hash, ErrorCode::kCheckpoint,
            "{} is damaged: header, bytes [0, {}): expected hash {:016x}, found {:016x}", file.path().string(),
            header.size(), expected.header_hash, found);
    return file;
  }

  const Manifest& manifest_;
  fs::path directory_;
  std::map<std::string, InputFile> files_;
  std::vector<std::byte> data_;
  std::string last_file_;  // of the block in data_; empty when there is none
  uint64_t last_offset_ = 0;
};

std::string kind_of(const std::string& name) {
  return name.substr(0, name.find('/'));
}

// The names that any rank asks for.
std::set<std::string> names_on_all_ranks(RankContext& rank, std::span<const NamedSlice> slices) {
  nlohmann::json names = nlohmann::json::array();
  for (const NamedSlice& slice : slices) {
    names.push_back(slice.name);
  }
  std::set<std::string> all;
  for (const std::string& text : all_gather_text(rank.world, names.dump())) {
    const auto theirs = nlohmann::json::parse(text).get<std::vector<std::string>>();
    all.insert(theirs.begin(), theirs.end());
  }
  return all;
}

void check_nothing_is_left_over(const Manifest& manifest, const std::set<std::string>& wanted,
                                const std::string& place) {
  std::set<std::string> kinds;
  for (const std::string& name : wanted) {
    kinds.insert(kind_of(name));
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    REQUIRE(!kinds.contains(kind_of(name)) || wanted.contains(name), ErrorCode::kCheckpoint,
            "{} is of another model: it holds tensor \"{}\" {}, which this job's model does not have", place, name,
            tensor.shape.text());
  }
}

const StoredTensor& find_tensor(const Manifest& manifest, const NamedSlice& wanted, const std::string& place) {
  const auto found = manifest.tensors.find(wanted.name);
  REQUIRE(found != manifest.tensors.end(), ErrorCode::kCheckpoint,
          "{}: tensor \"{}\" {} is missing; the checkpoint has {} other tensors", place, wanted.name,
          wanted.shard.global.text(), manifest.tensors.size());
  const StoredTensor& stored = found->second;
  REQUIRE(stored.shape == wanted.shard.global, ErrorCode::kCheckpoint,
          "{}: tensor \"{}\": expected shape {}, as this job's model has it, found {}", place, wanted.name,
          wanted.shard.global.text(), stored.shape.text());
  REQUIRE(stored.dtype == wanted.data.dtype, ErrorCode::kCheckpoint, "{}: tensor \"{}\": expected dtype {}, found {}",
          place, wanted.name, dtype_name(wanted.data.dtype), dtype_name(stored.dtype));
  return stored;
}

// Fills a slice in host memory, reading those blocks of stored slices that hold some of it.
void fill(SliceReader& reader, const Manifest& manifest, const StoredTensor& tensor, const NamedSlice& wanted,
          std::byte* data) {
  const TensorPiece to = wanted.piece();
  const size_t element_bytes = dtype_bytes(tensor.dtype);
  const TensorPiece valid = without_padding(to);
  if (valid.end - valid.begin < to.end - to.begin) {
    std::memset(data, 0, wanted.data.bytes());  // the padding; the rest is filled below
  }
  for (const StoredSlice& stored : tensor.slices) {
    const uint64_t bytes = tensor.slice_bytes(stored);
    for (uint64_t begin = 0; begin < bytes;) {
      const uint64_t end = begin + std::min(manifest.hash_block_bytes, bytes - begin);
      TensorPiece block = tensor.piece(stored);
      block.end = block.begin + static_cast<int64_t>(end / element_bytes);
      block.begin += static_cast<int64_t>(begin / element_bytes);
      for_each_common_run(block, to, [&](int64_t from_position, int64_t position, int64_t length) {
        std::memcpy(
            data + static_cast<size_t>(position) * element_bytes,
            reader.read(wanted.name, tensor, stored, begin) + static_cast<size_t>(from_position) * element_bytes,
            static_cast<size_t>(length) * element_bytes);
      });
      begin = end;
    }
  }
}

// The same wherever the slice lies.
void fill(HostCopy& copy, bool in_host_memory, SliceReader& reader, const Manifest& manifest,
          const NamedSlice& wanted) {
  const StoredTensor& tensor = manifest.tensors.at(wanted.name);
  std::byte* data = wanted.in_memory(SliceUse::kWrite).data;
  if (in_host_memory) {
    fill(reader, manifest, tensor, wanted, data);
    return;
  }
  std::vector<std::byte> bytes(wanted.data.bytes());
  fill(reader, manifest, tensor, wanted, bytes.data());
  copy.to_device(data, bytes.data(), bytes.size());
}

}  // namespace

nlohmann::json load_checkpoint(RankContext& rank, const std::string& directory, int64_t iteration,
                               std::span<const NamedSlice> slices) {
  const std::set<std::string> all_names = names_on_all_ranks(rank, slices);
  nlohmann::json state;
  agree(rank.world, [&] {
    const fs::path set = CheckpointLayout(directory).set(iteration);
    Manifest manifest = read_manifest(set, iteration);
    const std::string place = (set / "manifest.json").string();
    for (const NamedSlice& slice : slices) {
      find_tensor(manifest, slice, place);
    }
    check_nothing_is_left_over(manifest, all_names, place);
    SliceReader reader(manifest, set);
    HostCopy copy(rank.device);
    for (const NamedSlice& slice : slices) {
      fill(copy, rank.device.kind() == DeviceKind::kCpu, reader, manifest, slice);
    }
    state = std::move(manifest.state);
  });
  return state;
}

}  // namespace ashlar
