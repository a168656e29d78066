// Joins the emulator and the stand-ins in every program of an emulated build, before main(): kernels are queued on the
// stand-in's streams and take part in its check of order, device memory has the emulator's dead zones. At the end of
// the program, whatever emulator or stand-in found makes it fail, unless a test has taken the report.
//
// The machine that is played, by environment: ASHLAR_STANDIN_GPUS (8), ASHLAR_STANDIN_MIB (memory of a GPU, 4096),
// ASHLAR_STANDIN_SEED (1; delays and orders), ASHLAR_STANDIN_DELAYS (none, random, late), ASHLAR_STANDIN_DRIVER (as
// CUDA numbers it; 0: no driver).
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/emulation/emu/emulator.h"
#include "tests/emulation/standins/cudart/standin.h"

namespace ashlar {
namespace {

long long number_of(const char* variable, long long otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

standin::Delays delays_of_environment() {
  const char* text = std::getenv("ASHLAR_STANDIN_DELAYS");
  const std::string name = text == nullptr ? "none" : text;
  if (name == "random") {
    return standin::Delays::kRandom;
  }
  if (name == "late") {
    return standin::Delays::kLate;
  }
  if (name != "none") {
    std::fprintf(stderr, "ASHLAR_STANDIN_DELAYS=%s: expected none, random or late\n", name.c_str());
    std::abort();
  }
  return standin::Delays::kNone;
}

void fail_on_reports() {
  bool failed = false;
  for (const emu::Report& report : emu::take_reports()) {
    std::fprintf(stderr, "emulator: %s\n", emu::describe(report).c_str());
    failed = true;
  }
  for (const std::string& report : standin::take_reports()) {
    std::fprintf(stderr, "stand-in: %s\n", report.c_str());
    failed = true;
  }
  if (failed) {
    std::fflush(nullptr);
    _exit(70);
  }
}

// Whether this thread runs work of a stream. Tests of kernels alone launch without one, on memory of their own.
thread_local bool on_stream = false;

class Bridge {
 public:
  Bridge() {
    emu::hooks().enqueue = [](CUstream_st* stream, const std::string& name, std::function<void()> work) {
      if (stream == nullptr) {
        work();
        return;
      }
      const bool accepted = standin::enqueue(stream, name, [work = std::move(work)] {
        on_stream = true;
        work();
        on_stream = false;
      });
      if (!accepted) {
        std::fprintf(stderr, "stand-in: %s refused: its stream belongs to a device that is not current\n",
                     name.c_str());
        std::abort();
      }
    };
    emu::hooks().touched = [](const void* memory, size_t bytes, bool write) {
      if (on_stream) {
        standin::touch(memory, bytes, write ? standin::Access::kWrite : standin::Access::kRead);
      }
    };
    const auto seed = static_cast<uint64_t>(number_of("ASHLAR_STANDIN_SEED", 1));
    emu::options().seed = seed;
    standin::Config config;
    config.seed = seed;
    config.delays = delays_of_environment();
    config.devices.resize(static_cast<size_t>(number_of("ASHLAR_STANDIN_GPUS", 8)));
    for (standin::DeviceSpec& device : config.devices) {
      device.memory_bytes = static_cast<size_t>(number_of("ASHLAR_STANDIN_MIB", 4096)) << 20;
    }
    config.driver_version = static_cast<int>(number_of("ASHLAR_STANDIN_DRIVER", CUDART_VERSION));
    config.allocate = emu::allocate;
    config.release = emu::release;
    standin::reset(config);
    std::atexit(fail_on_reports);
  }
};

const Bridge bridge;

}  // namespace
}  // namespace ashlar
