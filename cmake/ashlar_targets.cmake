# One library per folder: ashlar_library(base SOURCES error.cpp DEPENDS fmt::fmt) makes the target ashlar_base.
# PUBLIC dependencies follow the include direction that tests/build checks.

add_library(ashlar_options INTERFACE)
target_include_directories(ashlar_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(ashlar_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror
                       -fno-math-errno -fno-trapping-math
                       -Wno-restrict)  # g++ 12 reports std::string's operator+ falsely (GCC bug 105329)
if(ASHLAR_NATIVE)
  target_compile_options(ashlar_options INTERFACE -march=native -mprefer-vector-width=512)
endif()
if(ASHLAR_SANITIZE)
  target_compile_options(ashlar_options INTERFACE -fsanitize=${ASHLAR_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(ashlar_options INTERFACE -fsanitize=${ASHLAR_SANITIZE})
endif()
target_link_libraries(ashlar_options INTERFACE Threads::Threads fmt::fmt)
if(OpenMP_CXX_FOUND)
  target_link_libraries(ashlar_options INTERFACE OpenMP::OpenMP_CXX)
else()
  target_compile_options(ashlar_options INTERFACE -Wno-unknown-pragmas)
endif()

function(ashlar_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE" ${ARGN})
  add_library(ashlar_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(ashlar_${name} PUBLIC ashlar_options ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE})
endfunction()

function(ashlar_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ashlar_options ${ARG_DEPENDS})
endfunction()

# ashlar_test(comm_test SOURCES .. DEPENDS .. [LABEL unit|mpi|slow] [RANKS n] [EMULATED]): RANKS starts it under mpirun with
# n ranks; EMULATED gives it the label "emulated" in an emulated build, whose other tests show nothing new.
# A test's time limit is a limit for hangs, not a measurement.
function(ashlar_test name)
  cmake_parse_arguments(ARG "EMULATED" "LABEL;RANKS;TIMEOUT" "SOURCES;DEPENDS;ARGS" ${ARGN})
  if(ASHLAR_EMULATED AND ARG_EMULATED)
    set(ARG_LABEL emulated)
  elseif(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT TARGET ${name})
    add_executable(${name} ${ARG_SOURCES})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    target_link_libraries(${name} PRIVATE ashlar_options ${ARG_DEPENDS} GTest::gtest GTest::gmock)
  endif()
  if(ARG_RANKS)
    add_test(NAME ${name}_np${ARG_RANKS}
             COMMAND ${CMAKE_SOURCE_DIR}/scripts/run_ranks.sh ${ARG_RANKS} $<TARGET_FILE:${name}> ${ARG_ARGS})
    set_tests_properties(${name}_np${ARG_RANKS} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ON)
  else()
    add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
    set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
  endif()
endfunction()
