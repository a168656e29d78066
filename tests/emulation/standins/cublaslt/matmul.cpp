// cublasLtMatmul: what it refuses, and the product as work on a stream.
#include <cstring>

#include "tests/emulation/standins/cublaslt/state.h"
#include "tests/emulation/standins/cudart/state.h"

namespace ashlar::standin {
namespace {

struct Memory {
  const void *a, *b, *c, *bias;
  void *d, *workspace;
  size_t workspace_bytes;
  float beta;
};

bool aligned(const void* memory, size_t bytes) {
  return reinterpret_cast<uintptr_t>(memory) % bytes == 0;
}

// Runs on the stream.
void run(const Problem& p, const Memory& memory) {
  bool mine = touch(memory.a, p.a.bytes(), Access::kRead);
  mine = touch(memory.b, p.b.bytes(), Access::kRead) && mine;
  if (memory.beta != 0) {
    mine = touch(memory.c, p.c.bytes(), Access::kRead) && mine;
  }
  if (memory.bias != nullptr) {
    mine = touch(memory.bias, p.d.rows * p.d.element_bytes(), Access::kRead) && mine;
  }
  mine = touch(memory.d, p.d.bytes(), Access::kWrite) && mine;
  mine = touch(memory.workspace, memory.workspace_bytes, Access::kWrite) && mine;
  if (mine) {
    std::memset(memory.workspace, 0xff, memory.workspace_bytes);
    compute_product(p, memory.a, memory.b, memory.beta, memory.c, memory.d);
  }
}

// The real one faults, or computes nonsense.
std::string misaligned(const Algorithm& algorithm, const Memory& memory) {
  const std::pair<const char*, const void*> pointers[] = {
      {"A", memory.a}, {"B", memory.b}, {"C", memory.c}, {"D", memory.d}};
  for (size_t i = 0; i < 4; ++i) {
    if (!aligned(pointers[i].second, algorithm.alignment[i])) {
      return std::string("cublasLtMatmul: ") + pointers[i].first + " is not aligned to the " +
             std::to_string(algorithm.alignment[i]) + " bytes that were declared when the algorithm was chosen";
    }
  }
  return "";
}

}  // namespace
}  // namespace ashlar::standin

using namespace ashlar::standin;

extern "C" cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                                         const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                                         cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                                         cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                                         const cublasLtMatmulAlgo_t* chosen, void* workspace, size_t workspace_bytes,
                                         cudaStream_t stream) {
  Problem problem;
  Memory memory{a, b, c, nullptr, d, workspace, 0, 0};
  {
    CublasLtState& s = cublaslt_state();
    const std::lock_guard lock(s.mutex);
    ++s.counts.products;
    if (const cublasStatus_t status = gather(problem, handle, description, a_layout, b_layout, c_layout, d_layout);
        status != CUBLAS_STATUS_SUCCESS) {
      return status;
    }
    if (s.handles.at(handle) != current_device()) {
      return report(CUBLAS_STATUS_INVALID_VALUE, "cublasLtMatmul: the handle belongs to device " +
                                                     std::to_string(s.handles.at(handle)) + ", the current device is " +
                                                     std::to_string(current_device()));
    }
    if (s.config.fail_products) {
      return CUBLAS_STATUS_EXECUTION_FAILED;
    }
  }
  if (alpha == nullptr || beta == nullptr || a == nullptr || b == nullptr || d == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(&memory.beta, beta, sizeof memory.beta);
  float factor;
  std::memcpy(&factor, alpha, sizeof factor);
  if (factor != 1 || (memory.beta != 0 && memory.beta != 1)) {
    return report(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmul: the stand-in knows alpha 1 and beta 0 or 1");
  }
  if (memory.beta != 0 && c == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (chosen == nullptr) {
    return report(CUBLAS_STATUS_NOT_SUPPORTED,
                  "cublasLtMatmul: no algorithm is given, so each call would search for one");
  }
  Algorithm algorithm;
  std::memcpy(&algorithm, chosen, sizeof algorithm);
  if (algorithm.magic != Algorithm::kMagic || algorithm.problem != hash_of(problem)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (workspace_bytes < algorithm.workspace_bytes || (algorithm.workspace_bytes > 0 && workspace == nullptr) ||
      !aligned(workspace, 256)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  memory.workspace_bytes = algorithm.workspace_bytes;
  if (const std::string text = misaligned(algorithm, memory); !text.empty()) {
    const Lock lock(state().mutex);
    poison(current_device(), text);
    return CUBLAS_STATUS_SUCCESS;  // as with every fault on a GPU, a later call finds it
  }
  memory.bias = problem.description.epilogue == CUBLASLT_EPILOGUE_BIAS ? problem.description.bias : nullptr;
  return enqueue(stream, "cublasLtMatmul", [problem, memory] { run(problem, memory); })
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}
