// Time by kind of kernel.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "runtime/device/cpu/cpu_device.h"

namespace ashlar {

class OpClock final : public TaskObserver {
 public:
  void finished(std::string_view op, double seconds) override { seconds_[kind_of(op)] += seconds; }
  void reset() { seconds_.clear(); }
  const std::map<std::string, double>& seconds() const { return seconds_; }
  double total() const;

 private:
  static std::string kind_of(std::string_view op);
  std::map<std::string, double> seconds_;
};

}  // namespace ashlar
