// One layer on one tensor rank, with memory of its own that is exactly as large as the layer says it needs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/layers/layer.h"
#include "runtime/comm/launch.h"
#include "tests/support/compare.h"

namespace ashlar::test {

inline double get(ConstTensorView x, int64_t at) {
  return x.dtype == DType::kF64 ? x.as<double>()[at] : static_cast<double>(x.as<float>()[at]);
}
inline void set(TensorView x, int64_t at, double value) {
  if (x.dtype == DType::kF64) {
    x.as<double>()[at] = value;
  } else {
    x.as<float>()[at] = static_cast<float>(value);
  }
}

// Values that depend on the name and the global index alone, so that every tensor rank holds slices of one tensor.
inline void fill_parameter(Parameter& parameter, double deviation = 0.3) {
  const auto count = static_cast<size_t>(parameter.shard.global.num_elements());
  const std::vector<float> values = random_floats(parameter.name, count, static_cast<float>(deviation));
  for (int64_t at = 0; at < parameter.value.num_elements(); ++at) {
    set(parameter.value, at, 0);
  }
  parameter.shard.for_each_run([&](int64_t local, int64_t global, int64_t length) {
    for (int64_t at = 0; at < length; ++at) {
      set(parameter.value, local + at,
          parameter.init_mean + static_cast<double>(values[static_cast<size_t>(global + at)]));
    }
  });
}

class LayerHarness {
 public:
  LayerHarness(RankContext& rank, Layer& tested, BatchShape batch_shape, int64_t width, int64_t vocab, DType dtype)
      : layer(tested),
        shape(batch_shape),
        stream(rank.device.create_stream()),
        saved_bytes(tested.bytes(batch_shape).saved),
        pending_bytes(tested.bytes(batch_shape).pending),
        saved_(rank.device.allocate(saved_bytes, "saved")),
        pending_(rank.device.allocate(pending_bytes, "pending")),
        workspace_memory_(rank.device.allocate(tested.bytes(batch_shape).workspace, "workspace")),
        workspace(workspace_memory_.data(), workspace_memory_.bytes()),
        context{.stream = *stream,
                .tensor = rank.world,
                .workspace = workspace,
                .shape = batch_shape,
                .batch = {},
                .losses = {}} {
    const Shape activation = shape.residual(width);
    const Shape tokens{shape.batch, shape.seq};
    for (TensorView* to : {&x, &y, &dx, &dy}) {
      *to = take(rank, dtype, activation);
    }
    context.losses = take(rank, dtype, tokens);
    context.batch = {take(rank, DType::kI32, tokens), take(rank, DType::kI32, tokens), take(rank, DType::kF32, tokens)};
    for (int64_t at = 0; at < tokens.num_elements(); ++at) {  // first and last ids, repeated ids, masked targets
      context.batch.tokens.as<int32_t>()[at] = static_cast<int32_t>((vocab - 1 + at * 3) % vocab);
      context.batch.targets.as<int32_t>()[at] = static_cast<int32_t>((vocab - 1 + at * 5) % vocab);
      context.batch.mask.as<float>()[at] = at % 3 == 1 ? 0.0f : 1.0f;
    }
    fill(x, "x");  // own rows of one tensor of all ranks
    fill(dy, "dy");
    for (Parameter* parameter : layer.parameters()) {
      parameter->value = take(rank, dtype, parameter->shard.local());
      parameter->grad = take(rank, dtype, parameter->shard.local());
      fill_parameter(*parameter);
    }
  }

  void forward() { layer.forward(context, y, x, memory()); }
  void backward_input() { layer.backward_input(context, dx, dy, x, memory()); }
  void backward_weight() { layer.backward_weight(context, dy, x, memory()); }
  LayerMemory memory() const {
    return {Arena(saved_.data(), saved_.bytes()), Arena(pending_.data(), pending_.bytes())};
  }

  // The scalar whose gradient the passes compute: sum of y * dy, or the sum of the losses times grad_scale. Collective
  // where ranks hold parts of y.
  double objective() {
    forward();
    stream->synchronize();
    double sum = 0;
    if (layer.has_output()) {
      for (int64_t at = 0; at < y.num_elements(); ++at) {
        sum += get(y, at) * get(dy, at);
      }
      if (shape.splits_rows()) {
        context.tensor.all_reduce(view_of(&sum, {1}), ReduceOp::kSum, *stream).wait_host();
      }
      return sum;
    }
    for (int64_t at = 0; at < context.losses.num_elements(); ++at) {
      sum += get(context.losses, at);
    }
    return sum * context.grad_scale;
  }

  Layer& layer;
  BatchShape shape;
  std::unique_ptr<Stream> stream;
  size_t saved_bytes;
  size_t pending_bytes;

 private:
  void fill(TensorView to, const std::string& name) {
    const std::vector<float> values = random_floats(name, static_cast<size_t>(to.num_elements() * shape.row_parts));
    const int64_t first = context.rows().first * to.shape[-1];
    for (int64_t at = 0; at < to.num_elements(); ++at) {
      set(to, at, static_cast<double>(values[static_cast<size_t>(first + at)]));
    }
  }
  TensorView take(RankContext& rank, DType dtype, Shape of) {
    tensors_.push_back(std::make_unique<Tensor>(rank.device, dtype, of, "test"));
    return tensors_.back()->view();
  }

  std::vector<std::unique_ptr<Tensor>> tensors_;
  Buffer saved_;
  Buffer pending_;
  Buffer workspace_memory_;

 public:
  Arena workspace;
  LayerContext context;
  TensorView x, y, dx, dy;  // shape.residual(C)
};

using LayerMaker = std::function<std::unique_ptr<Layer>(int tensor_rank, int tensor_size, DType dtype)>;

}  // namespace ashlar::test
