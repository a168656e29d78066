#include "runtime/comm/host/collectives.h"

#include <algorithm>
#include <cstring>

#include "runtime/comm/host/reduce.h"
#include "runtime/comm/host/streaming_copy.h"

namespace ashlar {
namespace {

// Below this, every member sums everything itself: one meeting instead of two.
constexpr size_t kSmallBytes = size_t{16} << 10;  // at most the common capacity

void copy_unless_same(std::byte* dst, const std::byte* src, size_t bytes) {
  if (dst != src && bytes > 0) {
    std::memmove(dst, src, bytes);
  }
}

// A piece of a tensor of `tensor_bytes`, whose place in `dst` no cache holds. Not for all_reduce, which has read that
// place a moment ago: there it costs a quarter of the time (64 MiB on 2 ranks), where all_gather wins a tenth, and on 4
// ranks a quarter.
void take(std::byte* dst, const std::byte* piece, size_t bytes, size_t tensor_bytes) {
  if (tensor_bytes >= kStreamingBytes) {
    copy_streaming(dst, piece, bytes);
  } else if (bytes > 0) {
    std::memcpy(dst, piece, bytes);
  }
}

}  // namespace

Collectives::Collectives(Rounds* rounds, int rank, int size)
    : rounds_(rounds), rank_(rank), size_(size), sources_(static_cast<size_t>(size)) {}

// The pieces of this round from all ranks, `own` standing for this rank's, into dst.
void Collectives::reduce_part(const OpInfo& op, std::byte* dst, const std::byte* own, int64_t count) {
  for (int from = 0; from < size_; ++from) {
    sources_[static_cast<size_t>(from)] = from == rank_ ? own : rounds_->piece(from);
  }
  reduce_in_order(dst, sources_, count, op.dtype, op.reduce_op);
}

void Collectives::all_reduce_small(const OpInfo& op, TensorView x) {
  for (int from = 0; from < size_; ++from) {
    rounds_->expect(from, x.bytes());
  }
  rounds_->give_all(x.data, x.bytes());
  rounds_->exchange();
  for (int from = 0; from < size_; ++from) {
    sources_[static_cast<size_t>(from)] = from == rank_ ? x.data : rounds_->common_piece(from);
  }
  reduce_in_order(x.data, sources_, x.num_elements(), op.dtype, op.reduce_op);
}

void Collectives::all_reduce(const OpInfo& op, TensorView x) {
  if (size_ == 1) {
    return;
  }
  rounds_->begin(op);
  if (x.bytes() <= kSmallBytes) {
    return all_reduce_small(op, x);
  }
  const int64_t element = static_cast<int64_t>(dtype_bytes(x.dtype));
  const int64_t capacity = static_cast<int64_t>(rounds_->piece_capacity()) / element;
  for (int64_t begin = 0; begin < x.num_elements(); begin += capacity * size_) {
    const int64_t length = std::min(capacity * size_, x.num_elements() - begin);
    constexpr int64_t kStep = 64;  // parts begin on cache lines
    const int64_t part = std::min(capacity, ((length + size_ - 1) / size_ + kStep - 1) / kStep * kStep);
    const auto part_data = [&](int owner) { return x.data + (begin + std::min(owner * part, length)) * element; };
    const auto part_count = [&](int owner) { return std::clamp<int64_t>(length - owner * part, 0, part); };
    const auto part_bytes = [&](int owner) { return static_cast<size_t>(part_count(owner) * element); };

    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) {
        rounds_->give(peer, part_data(peer), part_bytes(peer));
        rounds_->expect(peer, part_bytes(rank_));
      }
    }
    rounds_->exchange();
    reduce_part(op, part_data(rank_), part_data(rank_), part_count(rank_));

    for (int peer = 0; peer < size_; ++peer) {
      rounds_->expect(peer, part_bytes(peer));
    }
    rounds_->give_all(part_data(rank_), part_bytes(rank_));
    rounds_->exchange();
    for (int owner = 0; owner < size_; ++owner) {
      if (owner != rank_) {
        copy_unless_same(part_data(owner), rounds_->common_piece(owner), part_bytes(owner));
      }
    }
  }
}

void Collectives::all_gather(const OpInfo& op, std::byte* out, const std::byte* in, size_t bytes) {
  if (size_ > 1) {
    rounds_->begin(op);
    size_t begin = 0;
    do {
      const size_t length = std::min(rounds_->common_capacity(), bytes - begin);
      for (int from = 0; from < size_; ++from) {
        rounds_->expect(from, length);
      }
      rounds_->give_all(in + begin, length);
      rounds_->exchange();
      for (int from = 0; from < size_; ++from) {
        if (from != rank_) {
          take(out + static_cast<size_t>(from) * bytes + begin, rounds_->common_piece(from), length,
               bytes * static_cast<size_t>(size_));
        }
      }
      begin += length;
    } while (begin < bytes);
  }
  copy_unless_same(out + static_cast<size_t>(rank_) * bytes, in, bytes);
}

void Collectives::reduce_scatter(const OpInfo& op, TensorView out, ConstTensorView in) {
  if (size_ == 1) {
    return copy_unless_same(out.data, in.data, in.bytes());
  }
  rounds_->begin(op);
  const int64_t element = static_cast<int64_t>(dtype_bytes(in.dtype));
  const int64_t capacity = static_cast<int64_t>(rounds_->piece_capacity()) / element;
  const int64_t count = out.num_elements();
  int64_t begin = 0;
  do {
    const int64_t length = std::min(capacity, count - begin);
    const size_t bytes = static_cast<size_t>(length * element);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) {
        rounds_->give(peer, in.data + (peer * count + begin) * element, bytes);
        rounds_->expect(peer, bytes);
      }
    }
    rounds_->exchange();
    reduce_part(op, out.data + begin * element, in.data + (rank_ * count + begin) * element, length);
    begin += length;
  } while (begin < count);
}

void Collectives::broadcast(const OpInfo& op, std::byte* data, size_t bytes) {
  if (size_ == 1) {
    return;
  }
  rounds_->begin(op);
  size_t begin = 0;
  do {
    const size_t length = std::min(rounds_->common_capacity(), bytes - begin);
    if (rank_ == op.root) {
      rounds_->give_all(data + begin, length);
    } else {
      rounds_->expect(op.root, length);
    }
    rounds_->exchange();
    if (rank_ != op.root) {
      take(data + begin, rounds_->common_piece(op.root), length, bytes);
    }
    begin += length;
  } while (begin < bytes);
}

void Collectives::barrier(const OpInfo& op) {
  if (size_ > 1) {
    rounds_->begin(op);
    rounds_->exchange();
  }
}

}  // namespace ashlar
