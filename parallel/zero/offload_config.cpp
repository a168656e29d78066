#include "parallel/zero/offload_config.h"

#include <algorithm>

#include "kernels/optimizer.h"
#include "kernels/stat_dtype.h"

namespace ashlar {
namespace {

// A directory that files can be made in; messages name the flag.
void check_directory(const std::filesystem::path& directory) {
  std::error_code code;
  if (std::filesystem::is_directory(directory, code)) {
    return;
  }
  const bool exists = std::filesystem::exists(directory, code);
  std::filesystem::path nearest = std::filesystem::absolute(directory, code);
  while (nearest.has_relative_path() && !std::filesystem::is_directory(nearest, code)) {
    nearest = nearest.parent_path();
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("--nvme-path {}: expected a directory, found {}; the nearest directory is {}",
                          directory.string(), exists ? "a file" : "nothing", nearest.string()));
}

}  // namespace

StateKinds state_kinds(DType values, bool has_moments, DeviceKind device, const OffloadConfig& config) {
  const bool on_host_beside_gpu = device != DeviceKind::kCpu && config.offloads_state();
  return {.masters = values != kernels::stat_dtype(values) || on_host_beside_gpu || config.offloads_values(),
          .moments = has_moments};
}

HomeShape value_shape(const FlatLayout& layout, DType values) {
  HomeShape shape{.chunks = {}, .dtype = values, .num_kinds = 1};
  for (const StateChunk& part : cut_chunks(layout, std::max<int64_t>(layout.num_elements, 1))) {
    if (!shape.chunks.empty() && shape.chunks.back().layer == part.layer) {
      shape.chunks.back().end = part.end;
    } else {
      shape.chunks.push_back(part);
    }
    shape.chunks.back().ends_layer = true;
  }
  return shape;
}

HomeShape state_shape(const FlatLayout& layout, DType values, const StateKinds& kinds, int64_t chunk_elements) {
  return {
      .chunks = cut_chunks(layout, chunk_elements), .dtype = kernels::stat_dtype(values), .num_kinds = kinds.count()};
}

CarrierViews lay_out_carriers(Arena& arena, int64_t largest_chunk, DType grads, DType values) {
  CarrierViews views;
  views.scalars = take_tensor(arena, DType::kF64, {kernels::kNumUpdateScalars});
  for (size_t at = 0; at < 2; ++at) {
    views.grads[at] = take_tensor(arena, grads, {largest_chunk});
    views.values[at] = take_tensor(arena, values, {largest_chunk});
  }
  return views;
}

HomeBytes offloaded_bytes(const FlatLayout& layout, DType values, bool has_moments, const OffloadConfig& config,
                          DeviceKind device) {
  const StateKinds kinds = state_kinds(values, has_moments, device, config);
  const HomeShape shape = state_shape(layout, values, kinds, config.chunk_elements);
  HomeBytes bytes = home_bytes(config.state, shape);
  if (config.offloads_values()) {
    bytes += home_bytes(config.values, value_shape(layout, values));
  }
  if (device != DeviceKind::kCpu) {
    Arena counting;
    lay_out_carriers(counting, shape.largest_chunk(), grad_dtype(layout.sharding, values), values);
    bytes.host += static_cast<int64_t>(counting.used());
  }
  return bytes;
}

std::unique_ptr<StateHome> make_home(RankContext& rank, const HomeShape& shape, HomeKind kind,
                                     const FileHomeOptions& files, const std::string& what) {
  if (kind == HomeKind::kHost) {
    return make_host_home(rank.device, shape, what + " in host memory");
  }
  check_directory(files.directory);
  try {
    return make_file_home(rank.device, rank.recorder, shape, files, what + " on its way");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCheckpoint) {
      throw;
    }
    // Nothing was lost yet: another directory helps.
    throw Error(
        ErrorCode::kUsage,
        fmt::format("--nvme-path {}: {}; give a directory on a disk that takes the files of all ranks of a host",
                    files.directory.string(), error.what()));
  }
}

std::vector<FlatPiece> cut_pieces(const std::vector<FlatPiece>& owned, const std::vector<StateChunk>& chunks) {
  std::vector<FlatPiece> pieces;
  size_t chunk = 0;
  for (FlatPiece piece : owned) {
    while (piece.begin < piece.end) {
      while (chunk < chunks.size() && chunks[chunk].end <= piece.owned_begin) {
        ++chunk;
      }
      if (chunk == chunks.size()) {  // gradients without values
        break;
      }
      FlatPiece& part = pieces.emplace_back(piece);
      part.end = std::min(piece.end, piece.begin + chunks[chunk].end - piece.owned_begin);
      piece.owned_begin += part.num_elements();
      piece.begin = part.end;
    }
  }
  return pieces;
}

}  // namespace ashlar
