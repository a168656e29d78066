// A ParamSync that keeps its promises as strictly as it may: values and gradients lie where parameters say only while a
// pass has asked for them; at all other times there is NaN. Notes what was asked for, and what should not have been.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/pipeline/stage_chunk.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ashlar::test {

class WatchedParams final : public ParamSync {
 public:
  // With `windows` values may be asked for between open_stage and close_stage only, and each layer is named before it
  // is needed, by whatever was needed before it. What is reduced goes to `behind`.
  WatchedParams(bool windows, ParamSync& behind) : windows_(windows), behind_(behind) {}
  void add(Device& device, Stream& stream, StageChunk& chunk) {
    stream_ = &cpu_stream(stream);
    const auto stage = static_cast<size_t>(chunk.stage());
    places_.resize(std::max(places_.size(), stage + 1));
    next_grad_.resize(places_.size());
    for (const std::vector<Parameter*>& parameters : chunk.parameters_by_layer()) {
      auto& of_layer = places_[stage].emplace_back();
      for (Parameter* parameter : parameters) {
        const TensorView value = parameter->value, grad = parameter->grad;
        of_layer.push_back({.parameter = parameter,
                            .value = value,
                            .grad = grad,
                            .seen_value = Tensor(device, value.dtype, value.shape, "values that layers see"),
                            .seen_grad = Tensor(device, grad.dtype, grad.shape, "gradients that layers see")});
        poison(of_layer.back().seen_value);
        poison(of_layer.back().seen_grad);
      }
    }
    next_grad_[stage] = {0, places_[stage].size()};
  }

  // Around a run: parameters lie where only this one brings what they hold, and where they lay before.
  void take() { bind(true); }
  void give_back() { bind(false); }

  void open_stage(int stage, size_t first) override {
    note(fmt::format("open{}", first == kNoLayer ? "" : fmt::format(">{}", first)));
    expect(windows_ && !open_, "{} is opened beside {}", stage, open_.value_or(-1));
    open_ = stage;
    on_its_way_ = first;
  }
  void close_stage(int stage) override {
    note("close");
    expect(open_ == stage && !needed_, "{} is closed", stage);
    expect(on_its_way_ == kNoLayer, "{} is closed with layer {} on its way", stage, on_its_way_);
    open_.reset();
  }

  void need_values(int stage, size_t layer, size_t next) override {
    note(fmt::format("v{}{}", layer, next == kNoLayer ? "" : fmt::format(">{}", next)));
    expect(!windows_ || open_ == stage, "values of {} outside of its window", stage);
    expect(!needed_, "values of layer {} beside those of layer {}", layer, needed_.value_or(0));
    expect(on_its_way_ == layer || (!windows_ && on_its_way_ == kNoLayer), "layer {} is needed, {} is on its way",
           layer, on_its_way_);
    needed_ = layer;
    on_its_way_ = next;
    for (Place& place : of(stage, layer)) {
      copy(place.seen_value, place.value);
    }
  }
  void done_values(int stage, size_t layer) override {
    note(fmt::format("/v{}", layer));
    expect(needed_ == layer, "values of layer {} are not in use", layer);
    needed_.reset();
    for (Place& place : of(stage, layer)) {
      poison(place.seen_value);
    }
  }

  kernels::Write need_grads(int stage, size_t layer, int microbatch) override {
    note(fmt::format("g{}.{}", layer, microbatch));
    Turn& turn = next_grad_[static_cast<size_t>(stage)];
    expect(!in_grads_ && turn.microbatch == microbatch && turn.layers == layer + 1,
           "gradients of stage {} layer {} micro-batch {}, expected layer {} micro-batch {}", stage, layer, microbatch,
           turn.layers - 1, turn.microbatch);
    in_grads_ = true;
    for (Place& place : of(stage, layer)) {
      if (microbatch > 0) {
        copy(place.seen_grad, place.grad);
      }
    }
    return microbatch == 0 ? kernels::Write::kOverwrite : kernels::Write::kAdd;
  }
  void done_grads(int stage, size_t layer, int microbatch) override {
    note(fmt::format("/g{}.{}", layer, microbatch));
    Turn& turn = next_grad_[static_cast<size_t>(stage)];
    expect(in_grads_ && turn.microbatch == microbatch && turn.layers == layer + 1, "gradients of layer {}", layer);
    in_grads_ = false;
    if (--turn.layers == 0) {
      turn = {microbatch + 1, places_[static_cast<size_t>(stage)].size()};
    }
    for (Place& place : of(stage, layer)) {
      copy(place.grad, place.seen_grad);
      poison(place.seen_grad);
    }
  }
  void reduce_grads(int stage, int microbatch) override {
    note(microbatch < 0 ? "reduce" : fmt::format("reduce{}", microbatch));
    const Turn& turn = next_grad_[static_cast<size_t>(stage)];
    expect(turn.layers == places_[static_cast<size_t>(stage)].size() &&
               (microbatch < 0 || turn.microbatch == microbatch + 1),
           "micro-batch {} of stage {} is reduced, its next gradient is of micro-batch {}", microbatch, stage,
           turn.microbatch);
    if (microbatch < 0) {
      behind_.reduce_grads(stage, microbatch);
    }
  }

  // Between two steps; the number of micro-batches whose gradients a step makes.
  void end_step(int num_microbatches) {
    expect(!open_ && !needed_ && !in_grads_, "the step ends in the middle of a pass");
    for (size_t stage = 0; stage < places_.size(); ++stage) {
      if (!places_[stage].empty()) {
        expect(next_grad_[stage].microbatch == num_microbatches, "stage {} ends before micro-batch {}", stage,
               next_grad_[stage].microbatch);
        next_grad_[stage] = {0, places_[stage].size()};
      }
    }
  }

  std::string take_log() { return std::exchange(log_, {}); }
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  struct Place {
    Parameter* parameter = nullptr;
    TensorView value;  // where the store holds them
    TensorView grad;
    Tensor seen_value;  // what the layer sees
    Tensor seen_grad;
  };
  struct Turn {
    int microbatch = 0;
    size_t layers = 0;  // that this micro-batch has not come to yet
  };

  void bind(bool seen) {
    for (auto& of_stage : places_) {
      for (auto& of_layer : of_stage) {
        for (Place& place : of_layer) {
          place.parameter->value = seen ? TensorView(place.seen_value) : place.value;
          place.parameter->grad = seen ? TensorView(place.seen_grad) : place.grad;
        }
      }
    }
  }
  template <typename... Args>
  void expect(bool holds, fmt::format_string<Args...> what, Args&&... args) {
    if (!holds) {
      faults_.push_back(fmt::format(what, std::forward<Args>(args)...));
    }
  }
  void note(std::string_view what) {
    log_ += log_.empty() ? "" : " ";
    log_ += what;
  }
  std::vector<Place>& of(int stage, size_t layer) { return places_.at(static_cast<size_t>(stage)).at(layer); }
  void copy(TensorView to, ConstTensorView from) { stream_->copy(to.data, from.data, from.bytes()); }
  void poison(TensorView tensor) {
    // All bits set is NaN in every floating type.
    stream_->enqueue([tensor] { std::memset(tensor.data, 0xff, tensor.bytes()); });
  }

  bool windows_;
  ParamSync& behind_;
  CpuStream* stream_ = nullptr;
  std::vector<std::vector<std::vector<Place>>> places_;  // [stage][layer]
  std::vector<Turn> next_grad_;                          // by stage
  std::optional<int> open_;
  std::optional<size_t> needed_;
  size_t on_its_way_ = kNoLayer;
  bool in_grads_ = false;
  std::string log_;
  std::vector<std::string> faults_;
};

}  // namespace ashlar::test
