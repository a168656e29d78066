#include "tests/runtime/checkpoint/fake_model.h"

#include <cstring>

#include "runtime/base/rng.h"

namespace ashlar {

FakeModel::FakeModel(int rank, int num_ranks, Grid grid) {
  if (grid == Grid::kShared) {
    const int num_tensor_ranks = num_ranks % 2 == 0 ? 2 : 1;
    data_rank_ = rank / num_tensor_ranks;
    num_data_ranks_ = num_ranks / num_tensor_ranks;
    rank %= num_tensor_ranks;
    num_ranks = num_tensor_ranks;
  }
  const bool turned = grid == Grid::kTurned;
  const auto split = [&](Shape global, int dim) {
    const int64_t padded = (global[dim] + num_ranks - 1) / num_ranks * num_ranks;
    return ShardSpec::split(global, dim, rank, num_ranks, padded);
  };
  const auto split_or_whole = [&](Shape global, int dim) {
    return turned ? ShardSpec::replicated(global) : split(global, dim);
  };
  const bool first = rank == 0;
  const bool last = rank == num_ranks - 1;
  memory_.reserve(32);
  // Vocabulary-like: padded, and with more than five ranks the last one holds nothing but padding.
  add("model/wte.weight", DType::kF32, split({10, 6}, 0), true);
  add("adam_m/wte.weight", DType::kF32, split({10, 6}, 0), true);
  add("model/h.0.attn.c_attn.weight", DType::kF32, split({3, 8, 5}, turned ? 2 : 1), true);
  add("model/h.0.attn.c_proj.weight", DType::kF32, split({5, 8}, turned ? 0 : 1), true);
  add("model/h.0.mlp.c_fc.bias", DType::kBF16, split_or_whole({16}, 0), !turned || last);
  add("model/padded_inside", DType::kF64, split({3, 5, 2}, 1), true);
  add("model/ln_f.weight", DType::kF32, ShardSpec::replicated({7}), first);
  add("model/counts", DType::kI64, ShardSpec::replicated({2, 2}), last);
  add("model/scalar", DType::kU8, ShardSpec::replicated({}), first);
  for (int layer = 0; layer < 5; ++layer) {  // layers live on one rank each, as in a pipeline
    if (layer % num_ranks == rank) {
      add("model/layer." + std::to_string(layer), DType::kF16, ShardSpec::replicated({4, 3}), true);
    }
  }
}

void FakeModel::add(const std::string& name, DType dtype, ShardSpec shard, bool owned) {
  const int64_t count = shard.local().num_elements();
  if (num_data_ranks_ == 1) {
    add_range(name, dtype, shard, owned, 0, count);
    return;
  }
  for (int half = 0; half < 2; ++half) {
    const int64_t part = half * num_data_ranks_ + data_rank_;
    const int64_t begin = count * part / (2 * num_data_ranks_), end = count * (part + 1) / (2 * num_data_ranks_);
    if (begin < end) {
      add_range(name, dtype, shard, owned, begin, end);
    }
  }
}

void FakeModel::add_range(const std::string& name, DType dtype, const ShardSpec& shard, bool owned, int64_t begin,
                          int64_t end) {
  const bool is_whole = end - begin == shard.local().num_elements();
  memory_.emplace_back(static_cast<size_t>(end - begin) * dtype_bytes(dtype));
  slices_.push_back({.name = name,
                     .shard = shard,
                     .data = {memory_.back().data(), dtype, is_whole ? shard.local() : Shape{end - begin}},
                     .owned = owned,
                     .begin = begin});
}

void FakeModel::element(const NamedSlice& slice, uint64_t iteration, int64_t index, std::byte* out) {
  const PhiloxBlock block =
      PhiloxStream(iteration, RngPurpose::kTest, stream_of(slice.name)).block(static_cast<uint64_t>(index));
  std::memcpy(out, block.data(), dtype_bytes(slice.data.dtype));
}

void FakeModel::fill(uint64_t iteration) {
  for (const NamedSlice& slice : slices_) {
    std::memset(slice.data.data, 0xEE, slice.data.bytes());
    const size_t bytes = dtype_bytes(slice.data.dtype);
    for_each_run(slice.piece(), [&](int64_t local, int64_t global, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        element(slice, iteration, global + i, slice.data.data + static_cast<size_t>(local + i) * bytes);
      }
    });
  }
}

void FakeModel::scribble() {
  for (const NamedSlice& slice : slices_) {
    std::memset(slice.data.data, 0x5A, slice.data.bytes());
  }
}

std::string FakeModel::difference(uint64_t iteration) const {
  for (const NamedSlice& slice : slices_) {
    const size_t bytes = dtype_bytes(slice.data.dtype);
    std::vector<std::byte> expected(slice.data.bytes(), std::byte{0});
    for_each_run(slice.piece(), [&](int64_t local, int64_t global, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        element(slice, iteration, global + i, expected.data() + static_cast<size_t>(local + i) * bytes);
      }
    });
    for (size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] != slice.data.data[i]) {
        return slice.name + " differs at byte " + std::to_string(i) + " of the local slice";
      }
    }
  }
  return "";
}

}  // namespace ashlar
