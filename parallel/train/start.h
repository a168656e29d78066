// From a command line to a run that all ranks agree on: flags, sizes, data.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/train/options.h"
#include "runtime/comm/launch.h"
#include "runtime/data/open_datasets.h"
#include "runtime/data/tokenizer.h"

namespace ashlar {

// Collective. Blocks the host. Parses and checks the arguments on every rank, takes the sizes of --load-hf and of the
// tokenizer, sets the deadline of all waits, and makes sure that all ranks were given the same settings. `print` is set
// for --help and its like: show it and stop. The options are not resolved yet: --dry-run resolves them for another
// world size.
ParsedCommand start_command(RankContext& rank, const std::vector<std::string>& args);

// Collective. Blocks the host. resolve_options for this world, the same error on all ranks.
TrainOptions resolve_for_world(RankContext& rank, const TrainOptions& options);

// Runs `body`. What it throws names settings as the user wrote them: see in_users_words().
int name_settings(const TrainOptions& options, const std::function<int()>& body);

// Pure. The tokenizer that options with a known vocabulary mean.
std::unique_ptr<Tokenizer> tokenizer_of(const TrainOptions& options);

// Collective. Blocks the host. Opens training and validation data; throws when ranks see different data.
DataSources open_data(RankContext& rank, const TrainOptions& options);

}  // namespace ashlar
