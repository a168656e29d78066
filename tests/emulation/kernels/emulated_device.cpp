#include <cstring>

#include "tests/emulation/emu/emulator.h"
#include "tests/emulation/kernels/test_device.h"

namespace ashlar::test_device {

void* allocate(size_t bytes) {
  return emu::allocate(bytes);
}

void release(void* memory) {
  emu::release(memory);
}

void write(void* device, const void* host, size_t bytes) {
  std::memcpy(device, host, bytes);
}

void read(void* host, const void* device, size_t bytes) {
  std::memcpy(host, device, bytes);
}

int num_runs() {
  return 3;
}

// Ascending order of threads, then random ones.
void begin_run(int number) {
  if (number == 0) {
    emu::take_reports();
  }
  emu::options() = emu::Options{};
  emu::options().random_order = number > 0;
  emu::options().seed = 10 + static_cast<uint64_t>(number);
}

std::vector<std::string> end_runs() {
  emu::options() = emu::Options{};
  std::vector<std::string> faults;
  for (const emu::Report& report : emu::take_reports()) {
    faults.push_back(emu::describe(report));
  }
  return faults;
}

}  // namespace ashlar::test_device
