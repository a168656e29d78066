#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/checkpoint/blocks.h"
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

// Reads slices out of the files of one checkpoint, each checked when it is opened.
class SliceReader {
 public:
  SliceReader(const Manifest& manifest, fs::path directory) : manifest_(manifest), directory_(std::move(directory)) {}

  // The bytes of a stored slice, valid until the next call.
  const std::byte* read(const std::string& name, const StoredTensor& tensor, const StoredSlice& slice) {
    const InputFile& file = open(slice.file);
    data_.resize(tensor.slice_bytes(slice));
    file.read_at(slice.offset, data_.data(), data_.size());
    const uint64_t found = hash_bytes(data_.data(), data_.size());
    REQUIRE(found == slice.hash, ErrorCode::kCheckpoint,
            "{} is damaged: tensor \"{}\", bytes [{}, {}): expected hash {:016x}, found {:016x}", file.path().string(),
            name, slice.offset, slice.offset + data_.size(), slice.hash, found);
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

// Fills the slices of one tensor (a rank may hold a tied one twice) in host memory, reading each stored slice at most
// once.
void fill(SliceReader& reader, const StoredTensor& tensor, const std::vector<const NamedSlice*>& wanted) {
  for (const NamedSlice* slice : wanted) {
    if (slice->shard.num_valid_elements() < slice->data.num_elements()) {
      std::memset(slice->data.data, 0, slice->data.bytes());  // the padding; the rest is filled below
    }
  }
  for (const StoredSlice& stored : tensor.slices) {
    const Block from = block_of(tensor.shape, tensor.split_dim, stored.start, stored.size);
    const std::byte* data = nullptr;
    for (const NamedSlice* slice : wanted) {
      const Block to = block_of(slice->shard);
      if (num_common_elements(to, from) == 0) {
        continue;
      }
      if (data == nullptr) {
        data = reader.read(slice->name, tensor, stored);
      }
      copy_common_elements(to, slice->data.data, from, data, dtype_bytes(tensor.dtype));
    }
  }
}

// The same wherever the slices lie.
void fill(Device& device, HostCopy& copy, SliceReader& reader, const StoredTensor& tensor,
          const std::vector<const NamedSlice*>& wanted) {
  if (device.kind() == DeviceKind::kCpu) {
    fill(reader, tensor, wanted);
    return;
  }
  for (const NamedSlice* slice : wanted) {
    std::vector<std::byte> bytes(slice->data.bytes());
    NamedSlice on_host = *slice;
    on_host.data.data = bytes.data();
    fill(reader, tensor, {&on_host});
    copy.to_device(slice->data.data, bytes.data(), bytes.size());
  }
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
    std::map<std::string, std::vector<const NamedSlice*>> by_name;
    for (const NamedSlice& slice : slices) {
      DCHECK(slice.data.shape == slice.shard.local(), "{}: data {} for a shard {}", slice.name, slice.data.shape.text(),
             slice.shard.local().text());
      find_tensor(manifest, slice, place);
      by_name[slice.name].push_back(&slice);
    }
    check_nothing_is_left_over(manifest, all_names, place);
    SliceReader reader(manifest, set);
    HostCopy copy(rank.device);
    for (const auto& [name, wanted] : by_name) {
      fill(rank.device, copy, reader, manifest.tensors.at(name), wanted);
    }
    state = std::move(manifest.state);
  });
  return state;
}

}  // namespace ashlar
