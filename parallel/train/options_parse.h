// Parts of parse_train_options().
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "parallel/train/options.h"

namespace ashlar {

using Values = std::map<std::string, std::vector<std::string>>;  // by flag name

// Throws Error(kUsage) with what was probably meant. `where` is how the user wrote it: "flag --x", "key x in
// run.toml:3".
[[noreturn]] void unknown_flag(const std::string& name, const std::string& where);

// Pure. The command line wins under whatever name: what the file says of a setting in another way is left out, and
// notes say so unless it asked for nothing.
void leave_out_replaced(const Values& words, const std::string& path, Values& file, std::vector<std::string>& notes);

// Pure. What the user set and nothing in this run reads.
std::vector<std::string> unused_notes(const std::set<std::string>& given, const TrainOptions& o);

}  // namespace ashlar
