// What every device promises, as one list of cases (device_contract.cpp) that each kind of device runs: a test program
// links the list and names its devices with INSTANTIATE_TEST_SUITE_P.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "runtime/device/device.h"

namespace ashlar {

struct ContractDevice {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
};

inline void PrintTo(const ContractDevice& device, std::ostream* out) {
  *out << device.name;
}

inline std::string contract_device_name(const testing::TestParamInfo<ContractDevice>& device) {
  return device.param.name;
}

class DeviceContract : public testing::TestWithParam<ContractDevice> {
 protected:
  // Memory of `count` ints on the device, and beside the host.
  Buffer on_device(size_t count) { return device_->allocate(count * sizeof(int), "contract"); }
  Buffer on_host(size_t count) { return device_->allocate_host(count * sizeof(int), "contract"); }
  static int* ints(const Buffer& buffer) { return reinterpret_cast<int*>(buffer.data()); }

  std::unique_ptr<Device> device_ = GetParam().make();
};

}  // namespace ashlar
