// The state behind the stand-in for cuBLASLt, guarded by one mutex.
#pragma once

#include <cublasLt.h>

#include <map>
#include <mutex>

#include "tests/emulation/standins/cublaslt/standin.h"

namespace ashlar::standin {

struct Layout {
  cudaDataType_t type = CUDA_R_32F;
  uint64_t rows = 0, columns = 0;
  int64_t leading = 0;
  bool operator==(const Layout&) const = default;

  size_t element_bytes() const { return type == CUDA_R_32F ? 4 : 2; }
  size_t bytes() const { return ((columns - 1) * static_cast<uint64_t>(leading) + rows) * element_bytes(); }
};

struct Description {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};

// A product without its memory.
struct Problem {
  Description description;
  Layout a, b, c, d;
};

// What the opaque bytes of an algorithm hold.
struct Algorithm {
  static constexpr uint64_t kMagic = 0x6c74616c676f7269;
  uint64_t magic;
  uint64_t problem;  // hash_of() what it was found for
  uint64_t workspace_bytes;
  uint32_t alignment[4];
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

struct CublasLtState {
  std::mutex mutex;
  CublasLtConfig config;
  CublasLtCounts counts;
  std::map<const void*, int> handles;  // their devices
  std::map<const void*, Layout> layouts;
  std::map<const void*, Description> descriptions;
  std::map<const void*, Preference> preferences;
};
CublasLtState& cublaslt_state();

// With the state locked. Success, and the problem of these objects; or the status that the real library returns.
cublasStatus_t gather(Problem& problem, cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                      cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                      cublasLtMatrixLayout_t d);
uint64_t hash_of(const Problem& problem);  // Pure. Of all but the bias pointer.

// A report of the stand-in for the CUDA runtime, and the status.
cublasStatus_t report(cublasStatus_t status, const std::string& text);

// d = op(a) op(b) + beta c + bias. Memory of the device, which the caller may touch.
void compute_product(const Problem& problem, const void* a, const void* b, float beta, const void* c, void* d);

}  // namespace ashlar::standin
