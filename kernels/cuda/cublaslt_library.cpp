#include "kernels/cuda/cublaslt_library.h"

#include <fmt/format.h>

#include "runtime/base/dynamic_library.h"

#define ASHLAR_TEXT(number) ASHLAR_TEXT_OF(number)
#define ASHLAR_TEXT_OF(number) #number

namespace ashlar::kernels::cuda {
namespace {

// One literal, so that scripts/gpu_check.sh can read from a program what it will open.
constexpr const char* kLibrary = "libcublasLt.so." ASHLAR_TEXT(CUBLAS_VER_MAJOR);

}  // namespace

CublasLtLibrary load_cublaslt() {
  const DynamicLibrary library(
      kLibrary, ASHLAR_CUDA_LIBRARY_DIR, "--device cuda: cuBLASLt",
      fmt::format("This program was built with version {}; put the folder of {} on LD_LIBRARY_PATH (CUDA's lib64, or "
                  "nvidia/cublas/lib of Python's wheels)",
                  CUBLAS_VER_MAJOR, kLibrary));
  CublasLtLibrary table{};
  library.find(table.status_name, "cublasLtGetStatusName");
  library.find(table.status_string, "cublasLtGetStatusString");
  library.find(table.version, "cublasLtGetVersion");
  library.find(table.create, "cublasLtCreate");
  library.find(table.destroy, "cublasLtDestroy");
  library.find(table.create_description, "cublasLtMatmulDescCreate");
  library.find(table.destroy_description, "cublasLtMatmulDescDestroy");
  library.find(table.set_description, "cublasLtMatmulDescSetAttribute");
  library.find(table.create_layout, "cublasLtMatrixLayoutCreate");
  library.find(table.destroy_layout, "cublasLtMatrixLayoutDestroy");
  library.find(table.create_preference, "cublasLtMatmulPreferenceCreate");
  library.find(table.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  library.find(table.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  library.find(table.find_algorithms, "cublasLtMatmulAlgoGetHeuristic");
  library.find(table.matmul, "cublasLtMatmul");
  return table;
}

}  // namespace ashlar::kernels::cuda
