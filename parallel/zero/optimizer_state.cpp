// The optimizer's state as pieces of named tensors: for checkpoints, start values and comparisons.
#include <cstring>

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

std::byte* Optimizer::bring_state(size_t piece, StateKind kind, bool changes) const {
  const int first = offloaded_->kinds().first_moment();
  const int at = kind == StateKind::kMaster ? 0 : kind == StateKind::kFirstMoment ? first : first + 1;
  return offloaded_->bring(piece, at, changes).data;
}

void Optimizer::round_masters() {
  if (offloaded_) {
    offloaded_->publish_masters();
    return;
  }
  for (const Piece& piece : pieces_) {
    if (has_masters()) {
      kernels::cast(piece.value, piece.master, stream_);
    }
  }
}

void Optimizer::take_masters(size_t entry, const std::vector<float>& values) {
  HostCopy copy(stream_.device());
  for (size_t at = 0; at < pieces_.size() && has_masters(); ++at) {
    const Piece& piece = pieces_[at];
    if (piece.entry != entry) {
      continue;
    }
    if (offloaded_) {
      std::memcpy(bring_state(at, StateKind::kMaster, true), values.data() + piece.begin, piece.master.bytes());
    } else {
      copy.to_device(piece.master.data, values.data() + piece.begin, piece.master.bytes());
    }
  }
}

}  // namespace ashlar
