# Finds the kept libraries. A missing required one stops here with the Debian package that brings it; a missing
# optional one turns its feature off, and the summary at the end of configuration says so.

function(ashlar_require found name package)
  if(NOT ${found})
    message(FATAL_ERROR "${name} was not found. On Debian: apt-get install ${package}   (scripts/setup.sh installs all)")
  endif()
endfunction()

find_package(Threads REQUIRED)
find_package(fmt QUIET)
ashlar_require(fmt_FOUND "fmt" libfmt-dev)
find_package(spdlog QUIET)
ashlar_require(spdlog_FOUND "spdlog" libspdlog-dev)
find_package(CLI11 QUIET)
ashlar_require(CLI11_FOUND "CLI11" libcli11-dev)
find_package(nlohmann_json QUIET)
ashlar_require(nlohmann_json_FOUND "nlohmann-json" nlohmann-json3-dev)
find_path(XXHASH_INCLUDE_DIR xxhash.h)
ashlar_require(XXHASH_INCLUDE_DIR "xxHash" libxxhash-dev)
find_package(GTest QUIET)
ashlar_require(GTest_FOUND "GoogleTest" "libgtest-dev libgmock-dev")

find_package(MPI QUIET COMPONENTS CXX)
find_package(benchmark QUIET)
if(ASHLAR_ONEDNN)
  # Debian's dnnl-config.cmake insists on OpenCL headers that we do not need, so look for the library itself.
  find_path(DNNL_INCLUDE_DIR dnnl.h)
  find_library(DNNL_LIBRARY dnnl)
  if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
    set(dnnl_FOUND ON)
    file(STRINGS ${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h dnnl_version_lines REGEX "DNNL_VERSION_(MAJOR|MINOR|PATCH)")
    string(REGEX REPLACE "[^0-9]+" "." dnnl_VERSION "${dnnl_version_lines}")
    string(REGEX REPLACE "^\\.|\\.$" "" dnnl_VERSION "${dnnl_VERSION}")
  endif()
endif()
if(ASHLAR_OPENMP)
  find_package(OpenMP QUIET COMPONENTS CXX)
endif()

if(ASHLAR_CUDA)
  find_package(CUDAToolkit QUIET) # the headers and the runtime library; a GPU or a driver is asked for only when a job starts
endif()

# NCCL's header is enough for an emulated build, whose NCCL is a stand-in.
set(NCCL_FOUND OFF)
if(CUDAToolkit_FOUND)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib)
  if(NCCL_INCLUDE_DIR AND (NCCL_LIBRARY OR ASHLAR_EMULATED))
    set(NCCL_FOUND ON)
    file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h nccl_version_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE "[^0-9]+" "." NCCL_VERSION "${nccl_version_lines}")
    string(REGEX REPLACE "^\\.|\\.$" "" NCCL_VERSION "${NCCL_VERSION}")
  endif()
endif()

if(ASHLAR_EMULATED)
  # The emulator needs CUDA's headers, and its instrumentation is that of g++'s ThreadSanitizer.
  ashlar_require(CUDAToolkit_FOUND "the CUDA toolkit (its headers), which -DASHLAR_EMULATED=ON needs," nvidia-cuda-toolkit)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" OR ASHLAR_SANITIZE)
    message(FATAL_ERROR "-DASHLAR_EMULATED=ON needs g++ on x86-64 and no sanitizer")
  endif()
endif()

function(ashlar_summary_line name found yes no)
  if(${found})
    message(STATUS "  ${name}: ${yes}")
  else()
    message(STATUS "  ${name}: NOT FOUND or off -> ${no}")
  endif()
endfunction()

function(ashlar_print_summary)
  message(STATUS "Ashlar ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, sanitizers: '${ASHLAR_SANITIZE}'")
  ashlar_summary_line("MPI" MPI_CXX_FOUND "${MPI_CXX_VERSION}, ranks are processes started by mpirun"
                      "pretrain_gpt runs one rank only; no mpi tests")
  ashlar_summary_line("oneDNN" dnnl_FOUND "${dnnl_VERSION}, matrix products on the CPU" "plain loops, many times slower")
  ashlar_summary_line("OpenMP" OpenMP_CXX_FOUND "${OpenMP_CXX_VERSION}, threads within a rank" "one thread a rank")
  ashlar_summary_line("Google Benchmark" benchmark_FOUND "kernel benches" "no kernel benches")
  if(ASHLAR_EMULATED)
    message(STATUS "  CUDA: ${CUDAToolkit_VERSION}, EMULATED: kernels run on the CPU, CUDA's libraries are stand-ins")
  else()
    ashlar_summary_line("CUDA" CUDAToolkit_FOUND
                        "${CUDAToolkit_VERSION}, CUDA devices and kernels (never run on a GPU yet; preset emulated tests them)"
                        "no CUDA devices; the device is the CPU")
  endif()
  ashlar_summary_line("NCCL" NCCL_FOUND "${NCCL_VERSION}, --distributed-backend nccl" "GPUs talk through MPI (staged) only")
endfunction()
