// Handles, descriptors, and the search for an algorithm.
#include <cstring>

#include "tests/emulation/standins/cublaslt/state.h"
#include "tests/emulation/standins/cudart/state.h"

namespace ashlar::standin {

CublasLtState& cublaslt_state() {
  static CublasLtState* const the_state = new CublasLtState;  // never deleted, as streams may outlive every static
  return *the_state;
}

void reset_cublaslt(const CublasLtConfig& config) {
  CublasLtState& s = cublaslt_state();
  const std::lock_guard lock(s.mutex);
  s.config = config;
  s.counts = {};
  s.handles.clear();
  s.layouts.clear();
  s.descriptions.clear();
  s.preferences.clear();
}

CublasLtCounts cublaslt_counts() {
  const std::lock_guard lock(cublaslt_state().mutex);
  return cublaslt_state().counts;
}

std::vector<std::string> cublaslt_leaks() {
  const CublasLtState& s = cublaslt_state();
  const std::lock_guard lock(cublaslt_state().mutex);
  std::vector<std::string> found;
  const auto note = [&](size_t count, const char* what) {
    if (count > 0) {
      found.push_back(std::to_string(count) + " " + what + " of cuBLASLt");
    }
  };
  note(s.handles.size(), "handles");
  note(s.descriptions.size(), "descriptors");
  note(s.layouts.size(), "layouts");
  note(s.preferences.size(), "preferences");
  return found;
}

cublasStatus_t report(cublasStatus_t status, const std::string& text) {
  const Lock lock(state().mutex);
  state().reports.push_back(text);
  return status;
}

namespace {

bool known_types(const Problem& p) {
  const bool sixteen_bits = p.a.type == CUDA_R_16BF || p.a.type == CUDA_R_16F;
  if (p.a.type != p.b.type || p.c.type != p.d.type) {
    return false;
  }
  switch (p.description.compute) {
    case CUBLAS_COMPUTE_32F:
      return sixteen_bits ? p.d.type == p.a.type || p.d.type == CUDA_R_32F
                          : p.a.type == CUDA_R_32F && p.d.type == CUDA_R_32F;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return p.a.type == CUDA_R_32F && p.d.type == CUDA_R_32F;
    default:
      return false;
  }
}

bool fits(const Problem& p) {
  const bool flip_a = p.description.transpose_a != CUBLAS_OP_N, flip_b = p.description.transpose_b != CUBLAS_OP_N;
  const uint64_t rows = flip_a ? p.a.columns : p.a.rows, depth = flip_a ? p.a.rows : p.a.columns;
  const uint64_t columns = flip_b ? p.b.rows : p.b.columns, depth_b = flip_b ? p.b.columns : p.b.rows;
  return depth == depth_b && p.d.rows == rows && p.d.columns == columns && p.c.rows == rows && p.c.columns == columns;
}

}  // namespace

cublasStatus_t gather(Problem& problem, cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                      cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                      cublasLtMatrixLayout_t d) {
  const CublasLtState& s = cublaslt_state();
  if (s.handles.count(handle) == 0) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  if (s.descriptions.count(description) == 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  problem.description = s.descriptions.at(description);
  for (const auto& [object, layout] : {std::pair{a, &problem.a}, {b, &problem.b}, {c, &problem.c}, {d, &problem.d}}) {
    if (s.layouts.count(object) == 0) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    *layout = s.layouts.at(object);
    if (layout->rows == 0 || layout->columns == 0 || layout->leading < static_cast<int64_t>(layout->rows)) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  if (!fits(problem)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!known_types(problem)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (problem.description.epilogue == CUBLASLT_EPILOGUE_BIAS) {
    return problem.description.bias == nullptr ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
  }
  return problem.description.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? CUBLAS_STATUS_SUCCESS
                                                                   : CUBLAS_STATUS_NOT_SUPPORTED;
}

uint64_t hash_of(const Problem& p) {
  uint64_t hash = 1469598103934665603u;  // FNV-1a over numbers
  const auto add = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  add(static_cast<uint64_t>(p.description.compute));
  add(static_cast<uint64_t>(p.description.transpose_a));
  add(static_cast<uint64_t>(p.description.transpose_b));
  add(p.description.epilogue);
  for (const Layout* layout : {&p.a, &p.b, &p.c, &p.d}) {
    add(static_cast<uint64_t>(layout->type));
    add(layout->rows);
    add(layout->columns);
    add(static_cast<uint64_t>(layout->leading));
  }
  return hash;
}

}  // namespace ashlar::standin

using namespace ashlar::standin;

namespace {

template <typename Object, typename Value>
cublasStatus_t make(Object** made, std::map<const void*, Value>& all, Value value, int& count) {
  if (made == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *made = new Object{};  // only its address counts; kept to the end, so that no later object gets it
  all[*made] = value;
  ++count;
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Map>
cublasStatus_t drop(Map& all, const void* object, cublasStatus_t unknown) {
  const std::lock_guard lock(cublaslt_state().mutex);
  return all.erase(object) == 1 ? CUBLAS_STATUS_SUCCESS : unknown;
}

// Copies an attribute of exactly this size.
template <typename Field>
cublasStatus_t assign(Field& field, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof field) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

struct cublasLtContext {};

extern "C" {

size_t cublasLtGetVersion(void) {
  return CUBLAS_VERSION;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
      return "a status that the stand-in does not name";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t) {
  return "stand-in";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  CublasLtState& s = cublaslt_state();
  const std::lock_guard lock(s.mutex);
  return make(handle, s.handles, current_device(), s.counts.handles);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return drop(cublaslt_state().handles, handle, CUBLAS_STATUS_NOT_INITIALIZED);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  CublasLtState& s = cublaslt_state();
  const std::lock_guard lock(s.mutex);
  if (scale != CUDA_R_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return make(description, s.descriptions, Description{.compute = compute}, s.counts.descriptions);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  return drop(cublaslt_state().descriptions, description, CUBLAS_STATUS_INVALID_VALUE);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  CublasLtState& s = cublaslt_state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.descriptions.find(description);
  if (found == s.descriptions.end()) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(found->second.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(found->second.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(found->second.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return assign(found->second.bias, value, bytes);
    default:
      return report(CUBLAS_STATUS_NOT_SUPPORTED,
                    "cublasLtMatmulDescSetAttribute: the stand-in does not know attribute " +
                        std::to_string(static_cast<int>(attribute)));
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  CublasLtState& s = cublaslt_state();
  const std::lock_guard lock(s.mutex);
  if (type != CUDA_R_32F && type != CUDA_R_16BF && type != CUDA_R_16F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return make(layout, s.layouts, Layout{type, rows, columns, leading}, s.counts.layouts);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return drop(cublaslt_state().layouts, layout, CUBLAS_STATUS_INVALID_VALUE);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  CublasLtState& s = cublaslt_state();
  const std::lock_guard lock(s.mutex);
  return make(preference, s.preferences, Preference{}, s.counts.preferences);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return drop(cublaslt_state().preferences, preference, CUBLAS_STATUS_INVALID_VALUE);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  CublasLtState& s = cublaslt_state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.preferences.find(preference);
  if (found == s.preferences.end()) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  Preference& p = found->second;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return assign(p.workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return assign(p.reduction_schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return assign(p.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return assign(p.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return assign(p.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return assign(p.alignment[3], value, bytes);
    default:
      return report(CUBLAS_STATUS_NOT_SUPPORTED,
                    "cublasLtMatmulPreferenceSetAttribute: the stand-in does not know attribute " +
                        std::to_string(static_cast<int>(attribute)));
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int num_requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* num_found) {
  CublasLtState& s = cublaslt_state();
  const std::lock_guard lock(s.mutex);
  ++s.counts.searches;
  *num_found = 0;
  const auto wanted = s.preferences.find(preference);
  if (wanted == s.preferences.end() || num_requested <= 0 || results == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  Problem problem;
  if (const cublasStatus_t status = gather(problem, handle, description, a, b, c, d); status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  if (s.config.workspace_bytes > wanted->second.workspace_bytes) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  constexpr uint32_t kOutputsType = CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  if (problem.d.type != CUDA_R_32F && (wanted->second.reduction_schemes & kOutputsType) != 0) {
    ++s.counts.rounding_searches;
  }
  Algorithm algorithm{Algorithm::kMagic, hash_of(problem), s.config.workspace_bytes, {}};
  std::memcpy(algorithm.alignment, wanted->second.alignment, sizeof algorithm.alignment);
  results[0] = {};
  std::memcpy(&results[0].algo, &algorithm, sizeof algorithm);
  results[0].workspaceSize = algorithm.workspace_bytes;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *num_found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
