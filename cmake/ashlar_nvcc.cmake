# ashlar_nvcc_object(out source [flags..]): an object file by nvcc, with code for A100 and for H100/H200, and PTX of the
# A100's for everything newer. Its path is stored in `out`. Line information, which changes no code, more than doubles the
# size of every program, so only debug builds have it; scripts/kernel_table.py reads the code, so it is not compressed.
function(ashlar_nvcc_object out source)
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -O3 ${ARGN} $<$<CONFIG:Debug>:-lineinfo> -I${CMAKE_SOURCE_DIR}
            -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler=-Wall,-Wextra,-Werror,-Wno-unused-parameter -Werror all-warnings
            --no-compress
            -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a
            -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source}
    DEPFILE ${object}.d
    COMMAND_EXPAND_LISTS
    COMMENT "nvcc ${name}.cu (sm_80, sm_90a)" VERBATIM)
  set(${out} ${object} PARENT_SCOPE)
endfunction()
