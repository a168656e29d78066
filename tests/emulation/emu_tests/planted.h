// Small kernels, each with a planted bug and a correct twin, and what the emulator must say to the bug.
#pragma once

#include <span>

#include "tests/emulation/emu/emulator.h"

namespace ashlar::emu {

// Device memory that every planted kernel gets: 1024 floats each in a and b (b filled) and 16 zeroed flags.
struct PlantedMemory {
  float* a;
  float* b;
  int* flags;
};

struct PlantedCase {
  const char* name;
  Fault fault;
  void (*launch)(bool faulty, const PlantedMemory& memory);
};

std::span<const PlantedCase> planted_cases();

}  // namespace ashlar::emu
