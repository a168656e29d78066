#include "parallel/model/hf_layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"

namespace ashlar {

namespace {

bool is_conv1d_weight(const std::string& name) {
  const auto ends = [&](const char* end) { return name.starts_with("h.") && name.ends_with(end); };
  return ends(".attn.c_attn.weight") || ends(".attn.c_proj.weight") || ends(".mlp.c_fc.weight") ||
         ends(".mlp.c_proj.weight");
}

// What a transposed slice has of one row of the file's matrix, which is a column of ours: our rows [begin, end), and
// their place among the slice's elements in the file's order.
struct FileRow {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t position = 0;
};

std::vector<FileRow> file_rows(const HfSlice& slice) {
  // The first row whose element in a column does not lie in front of an element of the local matrix.
  const auto row_from = [&](int64_t element, int64_t column) {
    return (std::max<int64_t>(element - column, 0) + slice.columns - 1) / slice.columns;
  };
  std::vector<FileRow> rows;
  int64_t position = 0;
  for (int64_t column = 0; column < slice.columns; ++column) {
    rows.push_back({row_from(slice.begin, column), row_from(slice.end, column), position});
    position += rows.back().end - rows.back().begin;
  }
  return rows;
}

// Calls fn(place in the file's order, place in ours) for every element, in square tiles so that both sides stay in the
// cache.
template <typename Fn>
void for_each_transposed(const HfSlice& slice, Fn fn) {
  constexpr int64_t kTile = 32;
  const std::vector<FileRow> rows = file_rows(slice);
  for (int64_t row_tile = 0; row_tile < slice.rows; row_tile += kTile) {
    for (int64_t column_tile = 0; column_tile < slice.columns; column_tile += kTile) {
      for (int64_t column = column_tile; column < std::min(column_tile + kTile, slice.columns); ++column) {
        const FileRow& in_file = rows[static_cast<size_t>(column)];
        const int64_t end = std::min(row_tile + kTile, in_file.end);
        for (int64_t row = std::max(row_tile, in_file.begin); row < end; ++row) {
          fn(in_file.position + row - in_file.begin, row * slice.columns + column - slice.begin);
        }
      }
    }
  }
}

}  // namespace

std::string hf_base_name(const std::string& name) {
  return name.starts_with("model/") ? name.substr(6) : name;
}

std::map<std::string, Shape> hf_shapes(const HfConfig& config) {
  const int64_t width = config.n_embd;
  std::map<std::string, Shape> shapes = {{"wte.weight", {config.vocab_size, width}},
                                         {"wpe.weight", {config.n_positions, width}},
                                         {"ln_f.weight", {width}},
                                         {"ln_f.bias", {width}}};
  if (!config.tie_word_embeddings) {
    shapes["lm_head.weight"] = {config.vocab_size, width};
  }
  for (int64_t layer = 0; layer < config.n_layer; ++layer) {
    const std::string block = fmt::format("h.{}.", layer);
    for (const char* norm : {"ln_1", "ln_2"}) {
      shapes[block + norm + ".weight"] = {width};
      shapes[block + norm + ".bias"] = {width};
    }
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      shapes[block + name + ".weight"] = {in, out};
      shapes[block + name + ".bias"] = {out};
    };
    linear("attn.c_attn", width, 3 * width);
    linear("attn.c_proj", width, width);
    linear("mlp.c_fc", width, config.n_inner);
    linear("mlp.c_proj", config.n_inner, width);
  }
  return shapes;
}

HfSlice hf_slice(const NamedSlice& slice) {
  DCHECK(slice.data.dtype == DType::kF32, "{}: {}", slice.name, dtype_name(slice.data.dtype));
  HfSlice result;
  result.begin = slice.begin;
  result.end = slice.begin + slice.data.num_elements();
  result.name = hf_base_name(slice.name);
  const Shape& global = slice.shard.global;
  const int last = global.num_dims() - 1;
  if (!is_conv1d_weight(result.name)) {
    result.shard = slice.shard;
    result.file_shape = global;
    if (result.name.ends_with(".attn.c_attn.bias")) {
      result.file_shape = {global.num_elements()};
    }
    return result;
  }
  DCHECK(last >= 1, "{} {}", result.name, global.text());
  result.transposed = true;
  const Shape local = slice.shard.local();
  result.columns = local[last];
  result.rows = result.columns == 0 ? 0 : local.num_elements() / result.columns;
  result.file_shape = {global[last], global.num_elements() / std::max<int64_t>(global[last], 1)};
  // [.., in] becomes [in, ..]: the last dim moves to the front, the others move up by one.
  result.shard = slice.shard;
  result.shard.global = {global[last]};
  for (int dim = 0; dim < last; ++dim) {
    result.shard.global.append(global[dim]);
  }
  if (slice.shard.split_dim >= 0) {
    result.shard.split_dim = slice.shard.split_dim == last ? 0 : slice.shard.split_dim + 1;
  }
  return result;
}

void check_hf_slices(RankContext& rank, const HfConfig& config, std::span<const NamedSlice> slices, bool owned_only) {
  nlohmann::json mine = nlohmann::json::array();
  std::map<std::string, Shape> my_shapes;
  for (const NamedSlice& slice : slices) {
    const HfSlice in_file = hf_slice(slice);
    my_shapes[in_file.name] = in_file.file_shape;
    const TensorPiece piece = without_padding(slice.piece());
    mine.push_back({in_file.name, slice.owned ? piece.end - piece.begin : 0});
  }
  std::map<std::string, int64_t> owned;  // elements, over all ranks
  for (const std::string& text : all_gather_text(rank.world, mine.dump())) {
    for (const auto& [name, elements] :
         nlohmann::json::parse(text).get<std::vector<std::pair<std::string, int64_t>>>()) {
      owned[name] += elements;
    }
  }
  agree(rank.world, [&] {
    const std::map<std::string, Shape> expected = hf_shapes(config);
    for (const auto& [name, elements] : owned) {
      REQUIRE(expected.contains(name), ErrorCode::kCheckpoint,
              "this job's model has tensor \"{}\", which config.json does not describe (n_layer {}, "
              "tie_word_embeddings {})",
              name, config.n_layer, config.tie_word_embeddings);
    }
    for (const auto& [name, shape] : expected) {
      const auto found = owned.find(name);
      REQUIRE(found != owned.end(), ErrorCode::kCheckpoint,
              "config.json describes tensor \"{}\" {}, which this job's model does not have (n_layer {}, "
              "tie_word_embeddings {})",
              name, shape.text(), config.n_layer, config.tie_word_embeddings);
      DCHECK(!owned_only || found->second == shape.num_elements(), "{}: {} of {} elements have an owner", name,
             found->second, shape.num_elements());
    }
    for (const auto& [name, shape] : my_shapes) {
      REQUIRE(shape == expected.at(name), ErrorCode::kCheckpoint,
              "tensor \"{}\": config.json describes {}, this job's model needs {}", name, expected.at(name).text(),
              shape.text());
    }
  });
}

void for_each_file_run(const HfSlice& slice, const std::function<void(int64_t, int64_t, int64_t)>& fn) {
  if (!slice.transposed) {
    for_each_run(piece_of(slice.shard, slice.begin, slice.end - slice.begin), fn);
    return;
  }
  int64_t run_position = 0, run_global = 0, run_length = 0;  // the last run, which the next one may go on with
  int64_t column = 0;
  for (const FileRow& row : file_rows(slice)) {
    const TensorPiece piece = piece_of(slice.shard, column++ * slice.rows + row.begin, row.end - row.begin);
    for_each_run(piece, [&](int64_t position, int64_t global, int64_t length) {
      position += row.position;
      if (run_position + run_length != position || run_global + run_length != global) {
        if (run_length > 0) {
          fn(run_position, run_global, run_length);
        }
        run_position = position;
        run_global = global;
        run_length = 0;
      }
      run_length += length;
    });
  }
  if (run_length > 0) {
    fn(run_position, run_global, run_length);
  }
}

void to_file_order(const HfSlice& slice, float* to, const float* from) {
  for_each_transposed(slice, [&](int64_t in_file, int64_t ours) { to[in_file] = from[ours]; });
}

void from_file_order(const HfSlice& slice, float* to, const float* from) {
  for_each_transposed(slice, [&](int64_t in_file, int64_t ours) { to[ours] = from[in_file]; });
}

}  // namespace ashlar
