// What the training loop asks of data: sample number k, the same on every grid.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/tensor/tensor.h"

namespace ashlar {

// One micro-batch. Targets are the tokens one position further on; mask is 1 where a target counts.
struct MicroBatch {
  TensorView tokens;   // [B,T] int32
  TensorView targets;  // [B,T] int32
  TensorView mask;     // [B,T] fp32, 0 or 1
  // [B*T] int32: the positions of the tokens in ascending order of the token, equal tokens in ascending position. What
  // lets a GPU sum an embedding's gradient in a fixed order.
  TensorView order{};
};

// An endless row of samples: a pure function of the sample number, so the data position is a pure function of the step.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual int64_t seq_length() const = 0;
  virtual int64_t samples_per_epoch() const = 0;
  // Pure. Fills seq_length values each. Throws Error(kData) naming file and position when the data is bad.
  virtual void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
                    std::span<float> mask) const = 0;
  virtual std::string description() const = 0;  // one line for the log
};

// Pure. First sample of a micro-batch, Megatron's slicing: micro-batch i of a step covers the next B*d samples, of
// which data rank r takes [r*B, (r+1)*B).
inline int64_t first_sample(int64_t consumed_samples, int microbatch, int data_rank, int data_size,
                            int64_t microbatch_size) {
  return consumed_samples + (int64_t{microbatch} * data_size + data_rank) * microbatch_size;
}

// Reads samples [first, first + B) into a batch in host memory; not its order.
void fill_batch(MicroBatch& batch, const SampleSource& source, int64_t first);

// Pure. Fills the order of a batch in host memory from its tokens. Allocates nothing.
void sort_tokens(MicroBatch& batch);

}  // namespace ashlar
