# NVIDIA's libraries under one name each: the real one, or in an emulated build its stand-in from tests/emulation.
# What kernels/cuda/CMakeLists.txt has nvcc compile for: machine code for A100 and for H100/H200, and PTX of the A100's for
# everything newer. Programs compare it with the GPUs they find.
set(ASHLAR_CUDA_ARCHITECTURES sm_80 sm_90a compute_80)
if(NOT CUDAToolkit_FOUND)
  return()
endif()
add_library(ashlar_cudart INTERFACE)
if(ASHLAR_EMULATED)
  target_link_libraries(ashlar_cudart INTERFACE ashlar_standin_cudart ashlar_emulation_bridge)
  include(${CMAKE_SOURCE_DIR}/tests/emulation/emulated_library.cmake)
  add_library(ashlar_cublaslt INTERFACE)
  target_link_libraries(ashlar_cublaslt INTERFACE ashlar_standin_cublaslt)
else()
  # Static: a program then starts where no CUDA is, and can say so.
  target_link_libraries(ashlar_cudart INTERFACE CUDA::cudart_static)
  # Opened when it is first needed (kernels/cuda/cublaslt_library.h); here where to look besides the loader's own search.
  add_library(ashlar_cublaslt INTERFACE)
  target_compile_definitions(ashlar_cublaslt INTERFACE ASHLAR_CUDA_LIBRARY_DIR="${CUDAToolkit_LIBRARY_DIR}")
  target_link_libraries(ashlar_cublaslt INTERFACE ${CMAKE_DL_LIBS})
endif()

if(NCCL_FOUND)
  add_library(ashlar_nccl INTERFACE)
  if(ASHLAR_EMULATED)
    target_link_libraries(ashlar_nccl INTERFACE ashlar_standin_nccl)
  else()
    # Opened when it is first needed (runtime/comm/nccl/nccl_library.h); here where to look besides the loader's search.
    get_filename_component(nccl_directory ${NCCL_LIBRARY} DIRECTORY)
    target_compile_definitions(ashlar_nccl INTERFACE ASHLAR_NCCL_LIBRARY_DIR="${nccl_directory}")
    target_include_directories(ashlar_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
    target_link_libraries(ashlar_nccl INTERFACE ${CMAKE_DL_LIBS})
  endif()
endif()
