// What a walk over the layers of a stage asks for, so that values may lie elsewhere until they are read and gradients
// may leave as soon as they are complete.
#pragma once

#include <cstddef>

#include "kernels/matmul.h"

namespace ashlar {

inline constexpr size_t kNoLayer = ~size_t{0};

// All Stream-ordered, and Collective over the data axis, whose ranks walk alike. `layer` is an index within the stage.
// StageChunk calls need and done, the executor what stands in the schedule as an action.
//
// Of all layers of a rank at most one is between need_values and done_values, and at most one between need_grads and
// done_grads. `next` is the layer of the stage that is needed next, in this pass or in a later one of the same window,
// kNoLayer where the window ends. Mostly it is a neighbour; not so where the walk jumps, to the first layer of a group
// that is run again or to that of another pass; and it may be the same layer once more.
class ParamSync {
 public:
  virtual ~ParamSync() = default;
  // UNSHARD and RESHARD: between them passes read values. `first`: the layer that the first of them reads first, which
  // may be on its way from here on.
  virtual void open_stage(int stage, size_t first) = 0;
  virtual void close_stage(int stage) = 0;

  // Around a pass that reads Parameter::value.
  virtual void need_values(int stage, size_t layer, size_t next) = 0;
  virtual void done_values(int stage, size_t layer) = 0;

  // Around backward_weight, which writes Parameter::grad as the answer says: layers from the last to the first,
  // micro-batches of a stage in ascending order.
  virtual kernels::Write need_grads(int stage, size_t layer, int microbatch) = 0;
  virtual void done_grads(int stage, size_t layer, int microbatch) = 0;

  // REDUCE_GRAD: the stage's gradients of a micro-batch, or of the whole step (-1), are complete.
  virtual void reduce_grads(int stage, int microbatch) = 0;
};

// Values and gradients always lie where parameters say: a step's first micro-batch overwrites, the others add.
class ParamsInPlace : public ParamSync {
 public:
  void open_stage(int, size_t) override {}
  void close_stage(int) override {}
  void need_values(int, size_t, size_t) override {}
  void done_values(int, size_t) override {}
  kernels::Write need_grads(int, size_t, int microbatch) override {
    return microbatch == 0 ? kernels::Write::kOverwrite : kernels::Write::kAdd;
  }
  void done_grads(int, size_t, int) override {}
  void reduce_grads(int, int) override {}
};

}  // namespace ashlar
