// The calls of cuBLASLt that this runtime makes, as a table. Private to cublaslt.cpp; includes cuBLASLt's header.
//
// cublaslt_library.cpp opens the library when the first GPU's handle is made: linked the usual way it would cost every
// program 60 ms and 200 MB of memory at its start (measured with version 13.1), on machines without a GPU too, and a
// program could not start where it is missing. Tests link a stand-in instead.
#pragma once

#include <cublasLt.h>

namespace ashlar::kernels::cuda {

struct CublasLtLibrary {
  decltype(&::cublasLtGetStatusName) status_name;
  decltype(&::cublasLtGetStatusString) status_string;
  decltype(&::cublasLtGetVersion) version;
  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtDestroy) destroy;
  decltype(&::cublasLtMatmulDescCreate) create_description;
  decltype(&::cublasLtMatmulDescDestroy) destroy_description;
  decltype(&::cublasLtMatmulDescSetAttribute) set_description;
  decltype(&::cublasLtMatrixLayoutCreate) create_layout;
  decltype(&::cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&::cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&::cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) find_algorithms;
  decltype(&::cublasLtMatmul) matmul;
};

// Blocks the host. Throws kUsage where the library is not found.
CublasLtLibrary load_cublaslt();

}  // namespace ashlar::kernels::cuda
