// Does this grid train the same model? One rank and the grid run the same steps; everything is compared.
#pragma once

#include <string>
#include <vector>

#include "parallel/train/training.h"

namespace ashlar {

// Largest differences that rounding explains; weights as relative L2 error per tensor.
struct LayoutTolerance {
  double loss = 1e-5;
  double grad_norm = 1e-4;
  double weights_adam = 1e-3;
  double weights_sgd = 1e-5;
  // Under Adam the L2 difference of a tensor is compared with what Adam moves it by at most, about rate *
  // sqrt(elements) a step, and not with its length.
  bool in_adam_moves = false;
};

// Pure. The default for fp32; wider for 16-bit weights and activations.
LayoutTolerance layout_tolerance(DType dtype);

struct LayoutReport {
  bool equal = true;
  std::string first_difference;  // names step or tensor, the two values and the tolerance; empty when equal
  double worst_loss = 0;         // largest relative differences seen
  double worst_grad_norm = 0;
  double worst_weights = 0;
  std::string worst_tensor;
  int num_tensors = 0;
};

// Collective. Blocks the host. Trains `steps` steps on this grid and, on rank 0, on a grid of one, from the same seed
// and samples; compares losses, pre-clip gradient norms, every weight, and that replicated tensors are equal to the bit
// on all their holders. The key third of the attention bias is left out under Adam: its true gradient is 0, so Adam
// turns rounding into steps.
LayoutReport verify_layout(RankContext& rank, const TrainOptions& options, const SampleSource& source, int64_t steps);

}  // namespace ashlar
