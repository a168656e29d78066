// Where the tests of CUDA kernels run: in the emulator (emulated_device.cpp), or, linked instead, on a GPU
// (tests/gpu/cuda/test_device.cpp). Kernels are launched without a stream.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ashlar::test_device {

void* allocate(size_t bytes);  // filled with NaN
void release(void* memory);
void write(void* device, const void* host, size_t bytes);
void read(void* host, const void* device, size_t bytes);  // after all launches

// How often a case is run, and the bits of all runs must be equal: under so many orders of threads in the emulator,
// twice on a GPU.
int num_runs();
void begin_run(int number);
// Ends the last run. What was seen beside the results since the first, one text a fault.
std::vector<std::string> end_runs();

}  // namespace ashlar::test_device
