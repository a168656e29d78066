// Thread ranks on stand-in GPUs, with NCCL's stand-in between them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/comm/launch.h"
#include "runtime/device/cuda/cuda_stream.h"
#include "tests/emulation/standins/cudart/standin.h"
#include "tests/emulation/standins/nccl/standin_nccl.h"

namespace ashlar {

// Without `check_order` an error may leave memory behind that is still in use.
inline void play_gpus(int num_gpus, uint64_t seed, standin::Delays delays, bool check_order = true) {
  standin::Config config;
  config.check_order = check_order;
  config.seed = seed;
  config.delays = delays;
  config.devices.resize(static_cast<size_t>(num_gpus));
  standin::reset(config);
  standin::configure_nccl({});
}

inline void run_on_gpus(int num_ranks, const std::function<void(RankContext&)>& body, double timeout_seconds = 60) {
  run_thread_ranks(
      num_ranks, body,
      {.timeout_seconds = timeout_seconds, .device = {.kind = DeviceKind::kCuda, .backend = DeviceBackend::kNccl}});
}

inline std::string reports() {
  std::string text;
  for (const std::string& report : standin::take_reports()) {
    text += report + "\n";
  }
  return text;
}

// What a kernel does: reads `in`, changes `out` [n]. Stream-ordered.
inline void run_kernel(Stream& stream, const std::string& name, float* out, const float* in, size_t count,
                       float (*combine)(float, float)) {
  const size_t bytes = count * sizeof(float);
  EXPECT_TRUE(standin::enqueue(cuda_stream(stream).handle(), name, [=] {
    if (standin::touch(in, bytes, standin::Access::kRead) && standin::touch(out, bytes, standin::Access::kRead) &&
        standin::touch(out, bytes, standin::Access::kWrite)) {
      for (size_t i = 0; i < count; ++i) {
        out[i] = combine(out[i], in[i]);
      }
    }
  }));
}

struct GpuArray {
  GpuArray(RankContext& rank, size_t count)
      : buffer(rank.device.allocate(count * sizeof(float), "test data")), length(count) {}
  float* data() const { return reinterpret_cast<float*>(buffer.data()); }
  TensorView view() const { return view_of(data(), {static_cast<int64_t>(length)}); }

  Buffer buffer;
  size_t length;
};

}  // namespace ashlar
