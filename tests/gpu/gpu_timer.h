// The time between two points of a stream. cuda/gpu_timer.cpp is linked where CUDA is; host_timer.cpp, a clock of the
// host, in emulated builds, whose figures mean nothing.
#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace ashlar {

class StreamTimer {
 public:
  virtual ~StreamTimer() = default;
  virtual void start() = 0;      // Stream-ordered.
  virtual void stop() = 0;       // Stream-ordered.
  virtual double seconds() = 0;  // Blocks the host until the stream has come to stop().
};

// By CUDA's events on a GPU.
std::unique_ptr<StreamTimer> make_stream_timer(Stream& stream);

// Pure. False in emulated builds.
bool figures_are_real();

}  // namespace ashlar
