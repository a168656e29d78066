#include <filesystem>
#include <system_error>

#include "parallel/model/hf_config.h"
#include "parallel/model/hf_layout.h"
#include "runtime/base/error.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {
namespace fs = std::filesystem;

namespace {

// Without a slash at its end, so that it has a name and a parent.
fs::path target_path(const std::string& directory) {
  const fs::path path = fs::absolute(directory).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

void require_free(const fs::path& target) {
  std::error_code code;
  REQUIRE(!path_exists(target) || (fs::is_directory(target, code) && fs::is_empty(target, code)), ErrorCode::kUsage,
          "--save-hf {}: it exists already and is not overwritten; name a new or empty directory", target.string());
}

// The file's tensors in the order of our names.
SafetensorsLayout lay_out(const HfConfig& config, std::map<std::string, uint64_t>& offsets) {
  std::vector<SafetensorsEntry> entries;
  const std::map<std::string, Shape> shapes = hf_shapes(config);
  for (const auto& [name, shape] : shapes) {
    entries.push_back({name == "lm_head.weight" ? name : "transformer." + name, DType::kF32, shape});
  }
  // transformers refuses a file that does not say which library its numbers are for.
  const SafetensorsLayout layout = lay_out_safetensors(entries, {{"format", "pt"}});
  size_t index = 0;
  for (const auto& [name, shape] : shapes) {
    offsets[name] = layout.offsets[index++];
  }
  return layout;
}

// `data` [n] in host memory.
void write_slice(OutputFile& file, const NamedSlice& slice, const float* data, uint64_t offset) {
  const HfSlice in_file = hf_slice(slice);
  std::vector<float> scratch;
  if (in_file.transposed) {
    scratch.resize(static_cast<size_t>(slice.data.num_elements()));
    to_file_order(in_file, scratch.data(), data);
    data = scratch.data();
  }
  for_each_file_run(in_file, [&](int64_t position, int64_t global, int64_t length) {
    file.write_at(offset + static_cast<uint64_t>(global) * sizeof(float), data + position,
                  static_cast<size_t>(length) * sizeof(float));
  });
}

void write_owned_slices(Device& device, Storage& storage, const fs::path& path, std::span<const NamedSlice> slices,
                        const std::map<std::string, uint64_t>& offsets) {
  uint64_t needed = 0;
  for (const NamedSlice& slice : slices) {
    const TensorPiece piece = without_padding(slice.piece());
    needed += slice.owned ? static_cast<uint64_t>(piece.end - piece.begin) * sizeof(float) : 0;
  }
  if (needed == 0) {
    return;
  }
  OutputFile file(storage, path, needed, OutputFile::Mode::kOpen);
  HostCopy copy(device);
  std::vector<std::byte> scratch;
  for (const NamedSlice& slice : slices) {
    if (slice.owned) {
      write_slice(file, slice, copy.on_host(slice.in_memory(SliceUse::kRead), scratch).as<float>(),
                  offsets.at(hf_base_name(slice.name)));
    }
  }
  file.finish();
}

}  // namespace

void check_hf_target(RankContext& rank, const std::string& directory) {
  agree(rank.world, [&] {
    if (rank.world.rank() == 0) {
      require_free(target_path(directory));
    }
  });
}

void save_hf(RankContext& rank, const std::string& directory, const HfConfig& config,
             std::span<const NamedSlice> slices, const StorageOptions& storage_options) {
  const fs::path target = target_path(directory);
  const fs::path unfinished = target.parent_path() / fmt::format(".{}.tmp", target.filename().string());
  const fs::path model = unfinished / "model.safetensors";
  const bool is_first = rank.world.rank() == 0;
  check_hf_target(rank, directory);
  check_hf_slices(rank, config, slices, /*owned_only=*/true);
  Storage storage(storage_options);
  std::map<std::string, uint64_t> offsets;
  const SafetensorsLayout layout = lay_out(config, offsets);
  try {
    agree(rank.world, [&] {
      if (!is_first) {
        return;
      }
      storage.try_remove_tree(unfinished);  // of a job that was killed
      storage.create_directory(unfinished);
      storage.write_file(unfinished / "config.json", hf_config_text(config));
      OutputFile file(storage, model, layout.file_bytes);
      file.append(layout.header.data(), layout.header.size());
      file.resize(layout.file_bytes);
      file.finish();
    });
    agree(rank.world, [&] { write_owned_slices(rank.device, storage, model, slices, offsets); });
    agree(rank.world, [&] {
      if (is_first) {
        storage.sync_directory(unfinished);
        storage.rename(unfinished, target);
        storage.sync_directory(target.parent_path());
      }
    });
  } catch (const Error&) {
    if (is_first && !storage_options.leave_files) {
      storage.try_remove_tree(unfinished);
    }
    throw;
  }
}

}  // namespace ashlar
