// The steps of gpu_check. Each fails by StepReport::fail where a result is wrong, and throws where a call fails.
#pragma once

#include "tests/gpu/bench.h"
#include "tests/gpu/table.h"

namespace ashlar {

// The linked cases whose names match.
void check_cases(const std::string& filter, StepReport& report);

void check_matmul(Bench& bench, StepReport& report);
void check_attention(Bench& bench, StepReport& report);
void check_bandwidth(Bench& bench, StepReport& report);
// Ranks make their own devices.
void check_grid(bool tiny, StepReport& report);
void check_nccl(bool tiny, StepReport& report);
void check_train(bool tiny, StepReport& report);

}  // namespace ashlar
