#include "tests/emulation/bridge/played_machine.h"

#include "runtime/base/error.h"
#include "runtime/device/cuda/cuda_stream.h"
#include "tests/emulation/emu/emulator.h"
#include "tests/emulation/standins/cudart/standin.h"

namespace ashlar::test {

namespace {

void play(uint64_t seed, standin::Delays delays, size_t memory_bytes) {
  standin::Config config;
  config.seed = seed;
  config.delays = delays;
  config.devices.resize(8);
  for (standin::DeviceSpec& device : config.devices) {
    device.memory_bytes = memory_bytes;
  }
  config.allocate = emu::allocate;
  config.release = emu::release;
  standin::reset(config);
  emu::options().seed = seed;
}

}  // namespace

void play_random_delays(uint64_t seed) {
  play(seed, standin::Delays::kRandom, size_t{4096} << 20);
}

void play_memory(size_t bytes) {
  play(1, standin::Delays::kNone, bytes);
}

void enqueue_on_gpu(Stream& stream, const std::string& name, std::function<void()> work) {
  CudaStream& gpu = cuda_stream(stream);
  use_cuda_device(gpu.device_index());
  DCHECK(standin::enqueue(gpu.handle(), name, std::move(work)), "{}: the stream takes no work", name);
}

std::vector<std::string> take_machine_reports() {
  return standin::take_reports();
}

}  // namespace ashlar::test
