// The TOML file of --config: names and values as the command line would have them.
#pragma once

#include <map>
#include <string>

#include "parallel/train/options_parse.h"

namespace ashlar {

struct ConfigFile {
  Values values;                     // one value, of a list all its entries
  std::map<std::string, int> lines;  // by flag name: where it stands, from 1
};

// Blocks the host. A whole number comes as its digits, any other number as it is written. Throws Error(kUsage) with
// file and line where the file is no TOML, a key is no flag, or a value is not of its flag's kind; what the value says
// is left to apply_flag().
ConfigFile read_config_file(const std::string& path);

}  // namespace ashlar
