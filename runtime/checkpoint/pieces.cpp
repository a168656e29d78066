#include "runtime/checkpoint/pieces.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace ashlar {

namespace {

// A tensor as rows: one for each index of the dims in front of the split one. Counts of elements.
struct Rows {
  int64_t whole = 0;  // of a row of the tensor
  int64_t first = 0;  // of these, the first that is held
  int64_t held = 0;   // in memory, padding included
  int64_t valid = 0;  // of the held ones, those in front of the padding
};

Rows rows_of(const TensorPiece& piece) {
  const int64_t all = piece.global.num_elements();
  if (piece.split_dim < 0 || (piece.start == 0 && piece.extent == piece.global[piece.split_dim])) {
    return {all, 0, all, all};
  }
  int64_t inner = 1;
  for (int dim = piece.split_dim + 1; dim < piece.global.num_dims(); ++dim) {
    inner *= piece.global[dim];
  }
  const int64_t size = piece.global[piece.split_dim];
  return {size * inner, piece.start * inner, piece.extent * inner,
          std::clamp<int64_t>(size - piece.start, 0, piece.extent) * inner};
}

// Whether all global indices of one piece lie in front of all of the other.
bool are_apart(const TensorPiece& a, const TensorPiece& b) {
  const auto span = [](const TensorPiece& piece) {
    const Rows rows = rows_of(piece);
    const auto global = [&](int64_t element) {
      return element / rows.held * rows.whole + rows.first + element % rows.held;
    };
    return std::pair(global(piece.begin), global(piece.end - 1));
  };
  if (a.begin >= a.end || b.begin >= b.end) {
    return true;
  }
  const auto [first_a, last_a] = span(a);
  const auto [first_b, last_b] = span(b);
  return last_a < first_b || last_b < first_a;
}

}  // namespace

TensorPiece piece_of(const ShardSpec& shard, int64_t begin, int64_t count) {
  DCHECK(begin >= 0 && begin + count <= shard.local().num_elements(), "[{}, {}) of {}", begin, begin + count,
         shard.local().text());
  return {.global = shard.global,
          .split_dim = shard.split_dim,
          .start = shard.begin(),
          .extent = shard.split_dim < 0 ? 0 : shard.local()[shard.split_dim],
          .begin = begin,
          .end = begin + count};
}

TensorPiece without_padding(const TensorPiece& piece) {
  const Rows rows = rows_of(piece);
  const auto valid_before = [&](int64_t element) {
    return rows.held == 0 ? 0 : element / rows.held * rows.valid + std::min(element % rows.held, rows.valid);
  };
  TensorPiece valid = piece;
  valid.begin = valid_before(piece.begin);
  valid.end = valid_before(piece.end);
  if (piece.split_dim >= 0) {
    valid.extent = std::clamp<int64_t>(piece.global[piece.split_dim] - piece.start, 0, piece.extent);
  }
  return valid;
}

void for_each_run(const TensorPiece& piece, const std::function<void(int64_t, int64_t, int64_t)>& fn) {
  const Rows rows = rows_of(piece);
  for (int64_t row = piece.begin < piece.end ? piece.begin / rows.held : 0; row * rows.held < piece.end; ++row) {
    const int64_t begin = std::max(piece.begin, row * rows.held);
    const int64_t end = std::min(piece.end, row * rows.held + rows.valid);
    if (begin < end) {
      fn(begin - piece.begin, row * rows.whole + rows.first + begin - row * rows.held, end - begin);
    }
  }
}

void for_each_common_run(const TensorPiece& a, const TensorPiece& b,
                         const std::function<void(int64_t, int64_t, int64_t)>& fn) {
  DCHECK(a.global == b.global, "{} and {}", a.global.text(), b.global.text());
  if (are_apart(a, b)) {
    return;
  }
  const Rows rows = rows_of(b);
  for_each_run(a, [&](int64_t position, int64_t global, int64_t length) {
    for (int64_t row = global / rows.whole; row * rows.whole < global + length; ++row) {
      const int64_t shift = row * (rows.whole - rows.held) + rows.first;  // from a place in b to a global index
      const int64_t begin = std::max(global, std::max(b.begin, row * rows.held) + shift);
      const int64_t end = std::min(global + length, std::min(b.end, row * rows.held + rows.valid) + shift);
      if (begin < end) {
        fn(position + begin - global, begin - shift - b.begin, end - begin);
      }
    }
  });
}

}  // namespace ashlar
