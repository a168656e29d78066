#include <nlohmann/json.hpp>

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

// A slice that this rank writes, without its padding.
struct Written {
  const NamedSlice* slice = nullptr;
  TensorPiece piece;

  int64_t num_elements() const { return piece.end - piece.begin; }
  bool is_whole() const {
    Shape held = piece.global;
    if (piece.split_dim >= 0) {
      held.set(piece.split_dim, piece.extent);
    }
    return num_elements() == held.num_elements();
  }
  SafetensorsEntry entry() const {
    if (!is_whole()) {  // a rank may hold several parts of one slice
      return {fmt::format("{}[{}:{}]", slice->name, piece.begin, piece.end), slice->data.dtype, {num_elements()}};
    }
    Shape shape = piece.global;
    if (piece.split_dim >= 0) {
      shape.set(piece.split_dim, piece.extent);
    }
    return {slice->name, slice->data.dtype, shape};
  }
};

// Owned slices that are not all padding.
std::vector<Written> slices_to_write(std::span<const NamedSlice> slices) {
  std::vector<Written> written;
  for (const NamedSlice& slice : slices) {
    const TensorPiece piece = without_padding(slice.piece());
    if (slice.owned && piece.begin < piece.end) {
      written.push_back({&slice, piece});
    }
  }
  return written;
}

// Slices as they are written: in host memory, in one piece, without padding.
class SliceBytes {
 public:
  explicit SliceBytes(Device& device) : copy_(device) {}

  // Valid until the next call.
  const std::byte* of(const NamedSlice& slice) {
    const std::byte* data = copy_.on_host(slice.in_memory(SliceUse::kRead), from_device_).data;
    const size_t element_bytes = dtype_bytes(slice.data.dtype);
    size_t num_runs = 0;
    for_each_run(slice.piece(), [&](int64_t, int64_t, int64_t) { ++num_runs; });
    without_padding_.clear();
    for_each_run(slice.piece(), [&](int64_t position, int64_t, int64_t length) {
      const std::byte* run = data + static_cast<size_t>(position) * element_bytes;
      if (num_runs == 1) {
        data = run;
      } else {
        without_padding_.insert(without_padding_.end(), run, run + static_cast<size_t>(length) * element_bytes);
      }
    });
    return num_runs == 1 ? data : without_padding_.data();
  }

 private:
  HostCopy copy_;
  std::vector<std::byte> from_device_;
  std::vector<std::byte> without_padding_;
};

// Writes this rank's file and returns its part of the manifest.
Manifest write_slices(Device& device, Storage& storage, const fs::path& directory, const std::string& file_name,
                      const SaveRequest& request) {
  Manifest part;
  part.hash_block_bytes = request.hash_block_bytes;
  for (const NamedSlice& slice : request.slices) {  // also the ones that others have to write: missing ones are noticed
    part.tensors[slice.name] = {slice.data.dtype, slice.shard.global, slice.shard.split_dim, {}};
  }
  const std::vector<Written> slices = slices_to_write(request.slices);
  if (slices.empty()) {
    return part;
  }
  std::vector<SafetensorsEntry> entries;
  for (const Written& written : slices) {
    entries.push_back(written.entry());
  }
  const SafetensorsLayout layout = lay_out_safetensors(entries, {{"iteration", std::to_string(request.iteration)}});

  OutputFile file(storage, directory / file_name, layout.file_bytes);
  file.append(layout.header.data(), layout.header.size());
  SliceBytes bytes(device);
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto& [slice, piece] = slices[i];
    const std::byte* data = bytes.of(*slice);
    file.append(data, entries[i].bytes());
    part.tensors[slice->name].slices.push_back({file_name, layout.offsets[i], piece.start, piece.extent, piece.begin,
                                                piece.end,
                                                hash_blocks(data, entries[i].bytes(), request.hash_block_bytes)});
  }
  file.finish();
  part.files[file_name] = {layout.file_bytes, layout.header.size(),
                           hash_bytes(layout.header.data(), layout.header.size())};
  return part;
}

// Clears away what killed jobs left behind.
void prepare_directory(Storage& storage, const Log& log, const CheckpointLayout& layout) {
  storage.create_directory(layout.directory());
  restore_replaced(storage, log, layout);
  for (const fs::path& path : list_directory(layout.directory())) {
    if (is_left_over(path.filename().string()) && storage.try_remove_tree(path)) {
      log.info("removed {}, which an unfinished save left behind", path.string());
    }
  }
}

// The new set takes its name, then the mark moves. Everything before the mark's rename can be taken back, and is when
// something fails; nothing behind it can fail the save: the set is whole, durable and marked.
void commit(Storage& storage, const Log& log, const CheckpointLayout& layout, int64_t iteration) {
  storage.write_file(layout.new_mark(), std::to_string(iteration));
  const fs::path set = layout.set(iteration);
  const fs::path replaced = layout.replaced_set(iteration);
  const bool replaces = path_exists(set);
  bool moved_old = false;
  bool moved_new = false;
  try {
    if (replaces) {
      storage.rename(set, replaced);
      moved_old = true;
    }
    storage.rename(layout.new_set(iteration), set);
    moved_new = true;
    storage.sync_directory(layout.directory());
    storage.rename(layout.new_mark(), layout.mark());
  } catch (const Error&) {
    if (moved_new) {
      storage.try_rename(set, layout.new_set(iteration));
    }
    if (moved_old) {
      storage.try_rename(replaced, set);
    }
    throw;
  }
  try {
    storage.sync_directory(layout.directory());
  } catch (const Error& problem) {
    log.warning("iteration {} is saved, but a power cut now could take the latest mark back: {}", iteration,
                problem.what());
  }
  if (replaces && !storage.try_remove_tree(replaced)) {
    log.warning("cannot remove {}, the older set of this iteration; the next save tries again", replaced.string());
  }
}

}  // namespace

void check_save_directory(RankContext& rank, const std::string& directory, std::span<const NamedSlice> slices) {
  uint64_t bytes = 0;
  for (const Written& written : slices_to_write(slices)) {
    bytes += written.entry().bytes();
  }
  uint64_t needed = 0;
  for (const std::string& text : all_gather_text(rank.world, std::to_string(bytes))) {
    needed += std::stoull(text);
  }
  agree(rank.world, [&] {
    Storage storage;
    const CheckpointLayout layout(directory);
    if (rank.world.rank() != 0) {
      return;
    }
    storage.create_directory(layout.directory());
    const fs::path probe = layout.directory() / ".probe.tmp";
    storage.write_file(probe, "ashlar");
    storage.try_remove_tree(probe);
    const uint64_t available = free_bytes(layout.directory());
    if (available < needed) {
      rank.log.warning("--save {}: a checkpoint needs {} bytes, the disk has {} free", directory, needed, available);
    }
  });
}

void save_checkpoint(RankContext& rank, const SaveRequest& request, const nlohmann::json& state) {
  const CheckpointLayout layout(request.directory);
  Storage storage(request.storage);
  const fs::path new_set = layout.new_set(request.iteration);
  const bool is_first = rank.world.rank() == 0;
  try {
    agree(rank.world, [&] {
      if (is_first) {
        prepare_directory(storage, rank.log, layout);
        storage.create_directory(new_set);
      }
    });
    Manifest part;
    agree(rank.world, [&] {
      part = write_slices(rank.device, storage, new_set, CheckpointLayout::rank_file(rank.world.rank()), request);
    });
    const std::vector<std::string> parts = all_gather_text(rank.world, manifest_text(part));
    agree(rank.world, [&] {
      if (!is_first) {
        return;
      }
      Manifest manifest;
      manifest.iteration = request.iteration;
      manifest.num_ranks = rank.world.size();
      manifest.state = state;
      manifest.hash_block_bytes = request.hash_block_bytes;
      const std::string place = new_set.string();
      for (const std::string& text : parts) {
        merge_manifest(manifest, parse_manifest(text, place), place);
      }
      check_manifest(manifest, place);
      write_manifest(storage, new_set, manifest);
      storage.sync_directory(new_set);
      commit(storage, rank.log, layout, request.iteration);
    });
  } catch (const Error&) {
    if (is_first && !request.storage.leave_files) {
      storage.try_remove_tree(new_set);
      storage.try_remove_tree(layout.new_mark());
    }
    throw;
  }
}

}  // namespace ashlar
