// The stand-in for cuBLASLt as a test sees it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ashlar::standin {

struct CublasLtConfig {
  // What every algorithm needs and overwrites, so that a workspace shared by two streams is noticed. Where the caller's
  // limit is lower, no algorithm is found.
  size_t workspace_bytes = 4096;
  bool fail_products = false;  // cublasLtMatmul returns CUBLAS_STATUS_EXECUTION_FAILED
};

// Forgets all objects and counts.
void reset_cublaslt(const CublasLtConfig& config = {});

// Calls since the last reset.
struct CublasLtCounts {
  int handles = 0, descriptions = 0, layouts = 0, preferences = 0;  // made
  int searches = 0;                                                 // for algorithms
  int rounding_searches = 0;  // for a 16-bit result, that allowed partial sums rounded to its type
  int products = 0;
  bool operator==(const CublasLtCounts&) const = default;
};
CublasLtCounts cublaslt_counts();

// Handles and descriptors that are still there.
std::vector<std::string> cublaslt_leaks();

}  // namespace ashlar::standin
