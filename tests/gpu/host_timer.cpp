#include <chrono>

#include "tests/gpu/gpu_timer.h"

namespace ashlar {
namespace {

class HostTimer final : public StreamTimer {
 public:
  explicit HostTimer(Stream& stream) : stream_(stream) {}
  void start() override { begin_ = now(); }
  void stop() override { end_ = now(); }
  double seconds() override { return std::chrono::duration<double>(end_ - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point now() {
    stream_.synchronize();
    return std::chrono::steady_clock::now();
  }

  Stream& stream_;
  std::chrono::steady_clock::time_point begin_, end_;
};

}  // namespace

std::unique_ptr<StreamTimer> make_stream_timer(Stream& stream) {
  return std::make_unique<HostTimer>(stream);
}

bool figures_are_real() {
  return false;
}

}  // namespace ashlar
