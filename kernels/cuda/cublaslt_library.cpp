#include "kernels/cuda/cublaslt_library.h"

#include <dlfcn.h>

#include <string>

#include "runtime/base/error.h"

#define ASHLAR_TEXT(number) ASHLAR_TEXT_OF(number)
#define ASHLAR_TEXT_OF(number) #number

namespace ashlar::kernels::cuda {
namespace {

// One literal, so that scripts/gpu_check.sh can read from a program what it will open.
constexpr const char* kLibrary = "libcublasLt.so." ASHLAR_TEXT(CUBLAS_VER_MAJOR);

// The loader's own search first (LD_LIBRARY_PATH, the program's run path), then the toolkit of the build. Never closed:
// the library leaves handlers behind that run at exit.
void* open_library() {
  if (void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL); library != nullptr) {
    return library;
  }
  const char* loader_text = dlerror();
  const std::string why = loader_text == nullptr ? "" : loader_text;
  const std::string built_with = std::string(ASHLAR_CUDA_LIBRARY_DIR) + "/" + kLibrary;
  void* library = dlopen(built_with.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr, ErrorCode::kUsage,
          "--device cuda: cuBLASLt does not load: {}. This program was built with version {}; put the folder of {} on "
          "LD_LIBRARY_PATH (CUDA's lib64, or nvidia/cublas/lib of Python's wheels)",
          why, CUBLAS_VER_MAJOR, kLibrary);
  return library;
}

template <typename Function>
void find(Function*& function, void* library, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  REQUIRE(function != nullptr, ErrorCode::kUsage, "--device cuda: the cuBLASLt that was loaded has no {}", name);
}

}  // namespace

CublasLtLibrary load_cublaslt() {
  void* const library = open_library();
  CublasLtLibrary table{};
  find(table.status_name, library, "cublasLtGetStatusName");
  find(table.status_string, library, "cublasLtGetStatusString");
  find(table.version, library, "cublasLtGetVersion");
  find(table.create, library, "cublasLtCreate");
  find(table.destroy, library, "cublasLtDestroy");
  find(table.create_description, library, "cublasLtMatmulDescCreate");
  find(table.destroy_description, library, "cublasLtMatmulDescDestroy");
  find(table.set_description, library, "cublasLtMatmulDescSetAttribute");
  find(table.create_layout, library, "cublasLtMatrixLayoutCreate");
  find(table.destroy_layout, library, "cublasLtMatrixLayoutDestroy");
  find(table.create_preference, library, "cublasLtMatmulPreferenceCreate");
  find(table.destroy_preference, library, "cublasLtMatmulPreferenceDestroy");
  find(table.set_preference, library, "cublasLtMatmulPreferenceSetAttribute");
  find(table.find_algorithms, library, "cublasLtMatmulAlgoGetHeuristic");
  find(table.matmul, library, "cublasLtMatmul");
  return table;
}

}  // namespace ashlar::kernels::cuda
