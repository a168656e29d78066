// What --memory-limit-gb may propose: the values that each setting of a run could have instead, and the grids.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallel/train/options.h"
#include "runtime/device/device.h"

namespace ashlar {

// Most times as many tensor times pipeline ranks that are proposed.
inline constexpr int kMostGrowth = 64;

// What one setting is changed to.
struct SettingChange {
  std::string flags;  // as on a command line; empty: only flags are left out, or all is as it is
  int cost = 0;       // see cheapest_fit()
  std::function<void(TrainOptions&)> apply = [](TrainOptions&) {};
  std::vector<std::string> left_out = {};  // flags of the run that must not stand beside these
};
// All values of one setting; the first is the one it has.
using SettingValues = std::vector<SettingChange>;

struct GridChoice {
  int tensor = 1;
  int pipeline = 1;
  int world_size = 1;
};

// Pure. By setting.
std::vector<SettingValues> settings_from(const TrainOptions& options, DeviceKind device);
// Pure. The grid as it is, then those of as many ranks, then those of more, each by the ranks that a data rank has.
std::vector<GridChoice> grids_from(const TrainOptions& options);

}  // namespace ashlar
