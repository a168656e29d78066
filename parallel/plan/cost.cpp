#include "parallel/plan/cost.h"

#include "parallel/schedule/simulate.h"

namespace ashlar {

std::vector<int64_t> parameters_per_rank(const RunShape& shape) {
  std::vector<int64_t> stages;
  for (int stage = 0; stage < shape.grid.pipeline; ++stage) {
    const auto chunk = make_stage(shape.config, shape.layers_per_stage, stage, 0, shape.grid.tensor);
    int64_t elements = 0;
    for (const Parameter* parameter : chunk->parameters()) {
      const bool shares_value = parameter->tied_copy && shape.grid.pipeline == 1;
      elements += shares_value ? 0 : parameter->shard.local().num_elements();
    }
    stages.push_back(elements);
  }
  return stages;
}

double bubble_fraction(const RunShape& shape) {
  return simulate(make_schedule(shape.schedule, shape.grid.pipeline, shape.num_microbatches)).bubble_fraction();
}

double training_flops(const RunShape& shape, double num_tokens, FlopFormula formula) {
  return static_cast<double>(flops_per_token(shape.config, shape.batch.seq, formula)) * num_tokens;
}

double flops_6nd(double num_parameters, double num_tokens) {
  return 6 * num_parameters * num_tokens;
}

double training_days(double flops, int num_ranks, double peak, double mfu) {
  constexpr double kSecondsOfDay = 86400;
  return flops / (num_ranks * peak * mfu) / kSecondsOfDay;
}

}  // namespace ashlar
