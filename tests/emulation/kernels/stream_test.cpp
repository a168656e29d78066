// Kernels on the streams of a CUDA device: launches are queued, run when the stand-in lets them, and take part in its
// check of the order between streams.
#include <gmock/gmock.h>

#include <numeric>

#include "kernels/cuda/accumulate.h"
#include "kernels/cuda/activation.h"
#include "runtime/base/error.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/cuda_stream.h"
#include "tests/emulation/emu/emulator.h"
#include "tests/emulation/standins/cudart/standin.h"

namespace ashlar::kernels {
namespace {

constexpr int64_t kSize = 5000;
constexpr size_t kBytes = kSize * sizeof(float);

class KernelsOnStreams : public testing::Test {
 protected:
  KernelsOnStreams() { emu::take_reports(); }
  ~KernelsOnStreams() override { standin::reset(); }

  // y = x + x on one stream, x += y on another, which waits for the first unless it is forgotten. Returns what the
  // stand-in reports.
  static std::vector<std::string> run(uint64_t seed, standin::Delays delays, bool forget_to_wait) {
    standin::Config config;
    config.seed = seed;
    config.delays = delays;
    config.allocate = emu::allocate;
    config.release = emu::release;
    standin::reset(config);
    try {
      const auto device = make_cuda_device(0);
      const auto first = device->create_stream();
      const auto second = device->create_stream();
      const auto done = device->create_event();
      const Buffer host = device->allocate_host(kBytes, "host"), x = device->allocate(kBytes, "x"),
                   y = device->allocate(kBytes, "y");
      auto* values = reinterpret_cast<float*>(host.data());
      std::iota(values, values + kSize, 0.0f);
      auto* x_data = reinterpret_cast<float*>(x.data());
      auto* y_data = reinterpret_cast<float*>(y.data());
      first->copy(x_data, values, kBytes);
      first->fill_zero(y_data, kBytes);
      cuda::add_bias_residual(Element::kF32, y_data, x_data, x_data, nullptr, 1, kSize, cuda_stream(*first).handle());
      first->record(*done);
      if (!forget_to_wait) {
        second->wait(*done);
      }
      cuda::accumulate(x_data, Element::kF32, y_data, Element::kF32, kSize, cuda_stream(*second).handle());
      second->copy(values, x_data, kBytes);
      second->synchronize();
      first->synchronize();
      for (int64_t i = 0; i < kSize && !forget_to_wait; ++i) {
        EXPECT_EQ(values[i], 3.0f * static_cast<float>(i)) << i;
      }
    } catch (const Error&) {
      EXPECT_TRUE(forget_to_wait);  // after a report, the device's calls fail
    }
    return standin::take_reports();
  }
};

TEST_F(KernelsOnStreams, RunInTheOrderOfStreamsAndEvents) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    for (const auto delays : {standin::Delays::kNone, standin::Delays::kRandom, standin::Delays::kLate}) {
      EXPECT_THAT(run(seed, delays, false), testing::IsEmpty());
    }
  }
  EXPECT_TRUE(emu::take_reports().empty());
}

TEST_F(KernelsOnStreams, AForgottenWaitIsReportedWithTheKernelsName) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    EXPECT_THAT(run(seed, standin::Delays::kRandom, true), testing::Contains(testing::HasSubstr("accumulate_kernel")));
  }
}

}  // namespace
}  // namespace ashlar::kernels
