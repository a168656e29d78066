#include "kernels/cuda/cublaslt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "kernels/cuda/cublaslt_library.h"
#include "runtime/base/error.h"
#include "runtime/device/cuda/cuda_check.h"
#include "runtime/device/cuda/cuda_stream.h"

namespace ashlar::kernels::cuda {
namespace {

constexpr uint32_t kFullAlignment = 16;  // of a kernel's widest load; to declare more would only split the plans

size_t element_bytes(Element element) {
  return element == Element::kF32 ? 4 : 2;
}

cudaDataType_t data_type(Element element) {
  switch (element) {
    case Element::kF32:
      return CUDA_R_32F;
    case Element::kBf16:
      return CUDA_R_16BF;
    case Element::kF16:
      return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

const char* element_name(Element element) {
  return element == Element::kF32 ? "fp32" : element == Element::kBf16 ? "bf16" : "fp16";
}

uint32_t alignment_of(const void* memory) {
  uint32_t alignment = kFullAlignment;
  while (reinterpret_cast<uintptr_t>(memory) % alignment != 0) {
    alignment /= 2;
  }
  return alignment;
}

std::string describe(const MatmulCall& call) {
  const auto operand = [](const char* name, bool transpose, int64_t rows, int64_t columns) {
    return transpose ? fmt::format("{} [{},{}] transposed", name, columns, rows)
                     : fmt::format("{} [{},{}]", name, rows, columns);
  };
  return fmt::format("c [{},{}] {} {} {} x {} {}{}", call.m, call.n, element_name(call.output), call.add ? "+=" : "=",
                     operand("a", call.transpose_a, call.m, call.k), operand("b", call.transpose_b, call.k, call.n),
                     element_name(call.input), call.epilogue == Epilogue::kBias ? " + bias" : "");
}

// What descriptors and the choice of an algorithm depend on.
struct PlanKey {
  Element input, output;
  int64_t m, n, k;
  bool transpose_a, transpose_b, add;
  Epilogue epilogue;
  uint32_t a_alignment, b_alignment, c_alignment, bias_alignment;
  auto operator<=>(const PlanKey&) const = default;
};

PlanKey key_of(const MatmulCall& call) {
  return {call.input,
          call.output,
          call.m,
          call.n,
          call.k,
          call.transpose_a,
          call.transpose_b,
          call.add,
          call.epilogue,
          alignment_of(call.a),
          alignment_of(call.b),
          alignment_of(call.c),
          call.epilogue == Epilogue::kBias ? alignment_of(call.bias) : kFullAlignment};
}

template <typename Opaque>
using Owned = std::unique_ptr<Opaque, cublasStatus_t(CUBLASWINAPI*)(Opaque*)>;

// cuBLASLt counts columns first: what lies as [rows, columns] in our order is a columns x rows matrix to it. So it is
// asked for c^T = op(b)^T op(a)^T: b is its first operand, a its second, and both keep their transposition flag.
struct Plan {
  Owned<cublasLtMatmulDescOpaque_t> description;
  Owned<cublasLtMatrixLayoutOpaque_t> a, b, c;
  cublasLtMatmulAlgo_t algorithm{};
};

}  // namespace

struct CublasLt::State {
  int device_index;
  bool allow_tf32;
  Scratch workspace;
  CublasLtLibrary library = load_cublaslt();
  cublasLtHandle_t handle = nullptr;
  std::map<PlanKey, Plan> plans{};

  void check(cublasStatus_t status, const char* call_name, const std::string& what) const {
    if (status != CUBLAS_STATUS_SUCCESS) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("CUDA device {} failed at {}: {} ({}) for {}", device_index, call_name,
                              library.status_name(status), library.status_string(status), what));
    }
  }

  // [rows, columns] in our order.
  Owned<cublasLtMatrixLayoutOpaque_t> make_layout(Element element, bool transposed, int64_t rows, int64_t columns,
                                                  const std::string& what) const {
    if (transposed) {
      std::swap(rows, columns);
    }
    cublasLtMatrixLayout_t made = nullptr;
    check(library.create_layout(&made, data_type(element), static_cast<uint64_t>(columns), static_cast<uint64_t>(rows),
                                columns),
          "cublasLtMatrixLayoutCreate", what);
    return {made, library.destroy_layout};
  }

  template <typename Value>
  void set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, Value value, const std::string& what) const {
    check(library.set_description(plan.description.get(), attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute", what);
  }

  Plan make_plan(const MatmulCall& call) const {
    const std::string what = describe(call);
    const bool tf32 = allow_tf32 && call.input == Element::kF32;
    cublasLtMatmulDesc_t made = nullptr;
    check(library.create_description(&made, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate", what);
    Plan plan{{made, library.destroy_description},
              make_layout(call.input, call.transpose_a, call.m, call.k, what),
              make_layout(call.input, call.transpose_b, call.k, call.n, what),
              make_layout(call.output, false, call.m, call.n, what),
              {}};
    set(plan, CUBLASLT_MATMUL_DESC_TRANSA, call.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, what);
    set(plan, CUBLASLT_MATMUL_DESC_TRANSB, call.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, what);
    if (call.epilogue == Epilogue::kBias) {
      set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, what);
      set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias, what);
    }
    plan.algorithm = choose_algorithm(plan, call, what);
    return plan;
  }

  cublasLtMatmulAlgo_t choose_algorithm(const Plan& plan, const MatmulCall& call, const std::string& what) const {
    cublasLtMatmulPreference_t made = nullptr;
    check(library.create_preference(&made), "cublasLtMatmulPreferenceCreate", what);
    const Owned<cublasLtMatmulPreferenceOpaque_t> preference{made, library.destroy_preference};
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(library.set_preference(made, attribute, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute",
            what);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace.bytes));
    // Partial sums of a split k in fp32 or not at all: the other schemes would round them to the output's 16 bits.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(call.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(call.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(call.c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(call.c));
    cublasLtMatmulHeuristicResult_t found{};
    int num_found = 0;
    const cublasStatus_t status = library.find_algorithms(handle, plan.description.get(), plan.b.get(), plan.a.get(),
                                                          plan.c.get(), plan.c.get(), made, 1, &found, &num_found);
    if (num_found > 0 || status != CUBLAS_STATUS_NOT_SUPPORTED) {
      check(status, "cublasLtMatmulAlgoGetHeuristic", what);
    }
    if (num_found == 0 || found.state != CUBLAS_STATUS_SUCCESS) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("CUDA device {}: cuBLASLt has no algorithm for {} within {} bytes of "
                              "workspace",
                              device_index, what, workspace.bytes));
    }
    return found.algo;
  }
};

CublasLt::CublasLt(int device_index, bool allow_tf32, Scratch workspace)
    : state_(new State{.device_index = device_index, .allow_tf32 = allow_tf32, .workspace = workspace}) {
  DCHECK(reinterpret_cast<uintptr_t>(workspace.data) % 256 == 0, "cuBLASLt's workspace is not 256-byte aligned");
  use_cuda_device(device_index);
  state_->check(state_->library.create(&state_->handle), "cublasLtCreate", "a new handle");
}

CublasLt::~CublasLt() {
  if (state_->handle != nullptr) {
    state_->plans.clear();
    state_->library.destroy(state_->handle);
  }
}

bool CublasLt::supports(const MatmulCall& call) const {
  const int64_t largest = std::numeric_limits<int32_t>::max();  // its kernels count in 32 bits
  const bool sizes = std::min({call.m, call.n, call.k}) >= 1 && std::max({call.m, call.n, call.k}) <= largest;
  const bool elements = call.output == call.input || call.output == Element::kF32;
  const bool adds = !call.add || (call.output == Element::kF32 && call.epilogue == Epilogue::kNone);
  // The library reads a bias in the type of its output.
  const bool epilogue = call.epilogue == Epilogue::kNone ||
                        (call.epilogue == Epilogue::kBias && call.bias != nullptr && call.input == call.output);
  const auto aligned = [](const void* memory, Element element) {
    return reinterpret_cast<uintptr_t>(memory) % element_bytes(element) == 0;
  };
  return sizes && elements && adds && epilogue && aligned(call.a, call.input) && aligned(call.b, call.input) &&
         aligned(call.c, call.output) && aligned(call.bias, call.input);
}

void CublasLt::matmul(const MatmulCall& call, StreamHandle stream) {
  DCHECK(supports(call), "cuBLASLt does not take {}", describe(call));
  use_cuda_device(state_->device_index);
  const PlanKey key = key_of(call);
  auto found = state_->plans.find(key);
  if (found == state_->plans.end()) {
    found = state_->plans.emplace(key, state_->make_plan(call)).first;
  }
  const Plan& plan = found->second;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (call.epilogue == Epilogue::kBias) {
    status = state_->library.set_description(plan.description.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &call.bias,
                                             sizeof call.bias);
  }
  const float one = 1;
  const float keep = call.add ? 1 : 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = state_->library.matmul(state_->handle, plan.description.get(), &one, call.b, plan.b.get(), call.a,
                                    plan.a.get(), &keep, call.c, plan.c.get(), call.c, plan.c.get(), &plan.algorithm,
                                    state_->workspace.data, state_->workspace.bytes, stream);
  }
  if (status != CUBLAS_STATUS_SUCCESS) {  // the text is made only now: a step allocates nothing
    state_->check(status, "cublasLtMatmul", describe(call));
  }
}

}  // namespace ashlar::kernels::cuda
