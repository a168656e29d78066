# ashlar_emulated_library(name SOURCES a.cu .. DEPENDS ..): .cu files through g++, instrumented for the emulator
# (emu/access.cpp). g++ assumes strict aliasing and nvcc does not. Products and sums are not contracted, so that results
# can be compared with those of the CPU's kernels to the bit where these are compiled so.
function(ashlar_emulated_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  set_source_files_properties(${ARG_SOURCES} PROPERTIES LANGUAGE CXX)
  add_library(${name} STATIC ${ARG_SOURCES})
  target_compile_definitions(${name} PRIVATE ASHLAR_EMULATED)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/tests/emulation)
  target_compile_options(${name} PRIVATE -x c++ -O2 -g -fno-strict-aliasing -ffp-contract=off
                         -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-unused-parameter
                         -fsanitize=thread --param=tsan-instrument-func-entry-exit=0 -fsanitize=alignment,bounds)
  target_include_directories(${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(${name} INTERFACE ashlar_emulator ${ARG_DEPENDS})
endfunction()
