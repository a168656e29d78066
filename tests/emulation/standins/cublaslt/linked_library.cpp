// The table of calls of kernels/cuda/cublaslt.cpp, from the program itself: here the stand-in is linked, not opened.
#include "kernels/cuda/cublaslt_library.h"

namespace ashlar::kernels::cuda {

CublasLtLibrary load_cublaslt() {
  return {cublasLtGetStatusName,
          cublasLtGetStatusString,
          cublasLtGetVersion,
          cublasLtCreate,
          cublasLtDestroy,
          cublasLtMatmulDescCreate,
          cublasLtMatmulDescDestroy,
          cublasLtMatmulDescSetAttribute,
          cublasLtMatrixLayoutCreate,
          cublasLtMatrixLayoutDestroy,
          cublasLtMatmulPreferenceCreate,
          cublasLtMatmulPreferenceDestroy,
          cublasLtMatmulPreferenceSetAttribute,
          cublasLtMatmulAlgoGetHeuristic,
          cublasLtMatmul};
}

}  // namespace ashlar::kernels::cuda
