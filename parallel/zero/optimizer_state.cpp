// The optimizer's state as pieces of named tensors: for checkpoints, start values and comparisons.
#include "kernels/cast.h"
#include "parallel/zero/optimizer.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {

TensorView Optimizer::state_of(size_t piece, StateKind kind) const {
  const Piece& at = pieces_[piece];
  switch (kind) {
    case StateKind::kMaster:
      return at.master;
    case StateKind::kFirstMoment:
      return at.moments.first;
    case StateKind::kSecondMoment:
      return at.moments.second;
  }
  return {};
}

void Optimizer::round_masters() {
  for (const Piece& piece : pieces_) {
    if (has_masters()) {
      kernels::cast(piece.value, piece.master, stream_);
    }
  }
}

void Optimizer::take_masters(size_t entry, const std::vector<float>& values) {
  HostCopy copy(stream_.device());
  for (const Piece& piece : pieces_) {
    if (piece.entry == entry && has_masters()) {
      copy.to_device(piece.master.data, values.data() + piece.begin, piece.master.bytes());
    }
  }
}

}  // namespace ashlar
