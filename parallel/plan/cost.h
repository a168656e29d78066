// Parameters, arithmetic and time of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/plan/run_shape.h"

namespace ashlar {

// Pure. Values that a rank of each stage holds: its part of split tensors, with padding, and whole the others; a tied
// table once per rank.
std::vector<int64_t> parameters_per_rank(const RunShape& shape);

// Pure. Idle part of a step: of the simulated schedule, a forward taking 1, a backward 2, transfers nothing. For 1f1b
// and gpipe (p - 1) / (m + p - 1).
double bubble_fraction(const RunShape& shape);

// Pure. Forward and backward of `num_tokens` tokens by the formula of flops_per_token(), which metrics and bench_train
// report by.
double training_flops(const RunShape& shape, double num_tokens, FlopFormula formula);

// Pure. 6 N D: the rule of thumb of Kaplan et al., arXiv:2001.08361, section 2.1. It counts every parameter and no
// attention.
double flops_6nd(double num_parameters, double num_tokens);

// Pure. Days that `flops` take on `num_ranks` ranks of `peak` FLOP/s each at a model FLOPs utilisation of `mfu` (0.45).
double training_days(double flops, int num_ranks, double peak, double mfu);

}  // namespace ashlar
