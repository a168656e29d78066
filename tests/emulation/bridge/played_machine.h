// What tests of the runtime ask of the machine that emulator and stand-ins play, without CUDA's types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/device/device.h"

namespace ashlar::test {

// Blocks the host. A new machine, as the bridge makes one, whose work waits at moments that the seed draws. Not while a
// device is in use.
void play_random_delays(uint64_t seed);

// Blocks the host. A new machine without delays, whose GPUs have so much memory. Not while a device is in use.
void play_memory(size_t bytes = size_t{4096} << 20);

// Stream-ordered. Host work on the stream of a played GPU.
void enqueue_on_gpu(Stream& stream, const std::string& name, std::function<void()> work);

// What the stand-in for the CUDA runtime found since the last call.
std::vector<std::string> take_machine_reports();

}  // namespace ashlar::test
