// MPI's return codes as errors. Only files of this folder include it.
#pragma once

#include <fmt/format.h>
#include <mpi.h>

#include "runtime/base/error.h"

namespace ashlar {

inline void mpi_check(int code, const char* call) {
  if (code != MPI_SUCCESS) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw Error(ErrorCode::kCommunication, fmt::format("{} failed: {}", call, text));
  }
}

}  // namespace ashlar
