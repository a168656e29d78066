// What the pipeline knows of a layer: y = f(x; parameters), gradients written by hand, memory handed in.
//
// Legend of shapes: B micro-batch, T sequence, C width, H heads, D head dim, F ffn width, V vocabulary, t tensor size.
#pragma once

#include <vector>

#include "kernels/matmul.h"
#include "kernels/plain_types.h"
#include "parallel/layers/parameter.h"
#include "runtime/comm/communicator.h"
#include "runtime/data/batch.h"

namespace ashlar {

struct BatchShape {
  int64_t batch = 0;  // B
  int64_t seq = 0;    // T
  // Sequence parallelism: of the residual stream, flattened to [B*T,C], tensor rank r holds the r-th of so many equal
  // parts (residual.h). 1: every rank holds all rows.
  int64_t row_parts = 1;

  bool splits_rows() const { return row_parts > 1; }
  int64_t all_rows() const { return batch * seq; }
  int64_t own_rows() const { return all_rows() / row_parts; }
  // What a rank holds of the residual stream, and of its gradient: [B,T,C] or [1,B*T/t,C].
  Shape residual(int64_t width) const { return splits_rows() ? Shape{1, own_rows(), width} : Shape{batch, seq, width}; }
};

// What the dropout masks of a micro-batch are made of, besides the layer and the element: the same on every grid.
struct MaskSource {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_sample = 0;  // of the whole run: that of batch index 0
};

// What every pass of every layer is given.
struct LayerContext {
  Stream& stream;
  Communicator& tensor;  // the tensor axis
  Arena& workspace;      // scratch within one pass of one layer
  BatchShape shape;
  MicroBatch batch;  // tokens, targets [B,T]; read by the first and the last layer
  kernels::Write grad_write = kernels::Write::kOverwrite;  // what backward_weight does to Parameter::grad
  double grad_scale = 1;                                   // factor on the gradient of the loss sum
  bool training = true;  // false: forward only, without dropout; the head leaves no gradient behind
  TensorView losses;     // [B,T], written by the head
  MaskSource masks{};

  // Which rows of the micro-batch this rank's part of the residual stream is.
  kernels::SampleRows rows() const {
    return {.first = shape.splits_rows() ? tensor.rank() * shape.own_rows() : 0, .length = shape.seq};
  }
};

// A layer's own memory for one micro-batch. Each pass walks the arenas from their start, so the layouts must be the
// same functions in all passes; passed by value.
struct LayerMemory {
  Arena saved;    // written by forward, read until backward_weight
  Arena pending;  // written by backward_input, read by backward_weight
};

struct LayerBytes {
  size_t saved = 0;
  size_t pending = 0;
  size_t workspace = 0;  // largest need of one pass
};

class Layer {
 public:
  virtual ~Layer() = default;
  virtual const std::string& name() const = 0;
  virtual std::vector<Parameter*> parameters() = 0;
  virtual LayerBytes bytes(const BatchShape& shape) const = 0;  // Pure.
  virtual bool has_output() const { return true; }              // the head ends in the loss instead
  // Whether backward passes read Parameter::value; forward passes do.
  virtual bool input_pass_reads_values() const { return true; }
  virtual bool weight_pass_reads_values() const { return false; }

  // Stream-ordered on the device; Collective over the tensor axis. x, y, dx, dy: shape.residual(C); x and dy stay
  // unchanged until backward_weight is done. A forward pass without y (no data) makes only what the backward passes
  // read.
  virtual void forward(LayerContext& context, TensorView y, ConstTensorView x, LayerMemory memory) = 0;
  virtual void backward_input(LayerContext& context, TensorView dx, ConstTensorView dy, ConstTensorView x,
                              LayerMemory memory) = 0;
  virtual void backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x, LayerMemory memory) = 0;
};

}  // namespace ashlar
