// The plan of a rank against the high-water marks of its device.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "parallel/plan/memory.h"
#include "runtime/device/device.h"

namespace ashlar::test {

// To the byte, of each kind and in total, on the device and on the host: nothing comes and goes in a run.
inline void expect_peak_is_planned(const RankMemory& planned, const Device& device, const std::string& where) {
  const MemoryUses uses = device.memory_uses(MemoryKind::kDevice);
  const MemoryUses host = device.memory_uses(MemoryKind::kHost);
  for (size_t item = 0; item < kNumMemoryItems; ++item) {
    const char* name = memory_item_name(static_cast<MemoryItem>(item));
    EXPECT_EQ(planned.bytes[item], uses.items[item].peak) << where << ": " << name;
    EXPECT_EQ(planned.host_bytes[item], host.items[item].peak) << where << ": " << name << " on the host";
  }
  EXPECT_EQ(planned.total(), uses.total.peak) << where;
  EXPECT_EQ(planned.host_total(), host.total.peak) << where << " on the host";
}

}  // namespace ashlar::test
