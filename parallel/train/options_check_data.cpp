// What is wrong with data and files, and with what is done instead of training.
#include <algorithm>

#include "parallel/train/flags.h"
#include "parallel/train/options_check.h"

namespace ashlar {
namespace {

std::vector<double> split_parts(const std::string& split) {
  std::vector<double> parts;
  size_t start = 0;
  while (start <= split.size()) {
    const size_t comma = std::min(split.find(',', start), split.size());
    const auto part = parse_real(split.substr(start, comma - start));
    if (!part || *part < 0) {
      return {};
    }
    parts.push_back(*part);
    start = comma + 1;
  }
  parts.resize(std::max<size_t>(parts.size(), 3));
  return parts;
}

std::vector<std::string> given_of_days(const TrainOptions& o) {
  std::vector<std::string> flags;
  for (const auto& [name, value] :
       {std::pair("train-tokens", o.train_tokens), std::pair("peak-tflops", o.peak_tflops), std::pair("mfu", o.mfu)}) {
    if (value > 0) {
      flags.push_back(fmt::format("--{} {}", name, value));
    }
  }
  return flags;
}

// The forms in which data was given.
std::vector<std::string> given_sources(const TrainOptions& o) {
  std::vector<std::string> flags;
  const auto add = [&](bool given, const char* flag) {
    if (given) {
      flags.emplace_back(flag);
    }
  };
  add(!o.data_path.empty(), "--data-path");
  add(!o.train_data_path.empty(), "--train-data-path");
  add(o.mock_data, "--mock-data");
  return flags;
}

}  // namespace

void check_data(const TrainOptions& o, Problems& problems) {
  const std::vector<std::string> sources = given_sources(o);
  problems.add_if(sources.size() > 1, "the data is given more than once ({}): give one of them",
                  fmt::join(sources, ", "));
  problems.add_if(sources.empty() && !o.dry_run,
                  "no data: give --data-path PREFIX (made by preprocess_data), "
                  "--train-data-path or --mock-data");
  problems.add_if(
      !o.valid_data_path.empty() && o.train_data_path.empty(),
      "--valid-data-path needs --train-data-path; got {} (of --data-path --split sets validation data aside)",
      sources.empty() ? "neither" : fmt::format("{}", fmt::join(sources, ", ")));
  problems.add_if(o.eval_interval > 0 && !o.train_data_path.empty() && o.valid_data_path.empty(),
                  "--eval-interval {} needs --valid-data-path beside --train-data-path", o.eval_interval);
  const std::vector<double> parts = split_parts(o.split);
  const bool legal = parts.size() == 3 && parts[0] > 0;
  problems.add_if(
      !legal, "--split expects up to three numbers of at least 0, the first above 0, as in 969,30,1; got {}", o.split);
  problems.add_if(legal && parts[1] == 0 && o.eval_interval > 0 && !o.data_path.empty(),
                  "--eval-interval {} needs validation data, and --split {} sets none aside; for instance 969,30,1",
                  o.eval_interval, o.split);
}

void check_files_and_run(const TrainOptions& o, Problems& problems) {
  problems.add_if(o.save_interval > 0 && o.save.empty(), "--save-interval {} needs --save DIR", o.save_interval);
  // With --load DIR --save DIR the Hugging Face weights are the fresh start, and later runs go on from DIR.
  problems.add_if(!o.load.empty() && !o.load_hf.empty() && o.load != o.save,
                  "--load {} and --load-hf {} both bring weights: give one of them, or --load the --save directory",
                  o.load, o.load_hf);
  // Resolved options carry the world size they were resolved for.
  problems.add_if(o.world_size > 0 && !o.dry_run && o.data_parallel_size == 0,
                  "--world-size {} is for --dry-run; a run has as many ranks as it is started with: mpirun -np {}",
                  o.world_size, o.world_size);
  problems.add_if((o.peak_tflops > 0) != (o.mfu > 0) || (o.train_tokens > 0 && o.mfu == 0),
                  "the days of a training need --peak-tflops X and --mfu X (and --train-tokens X, where --train-iters "
                  "does not say how many); got {}",
                  fmt::join(given_of_days(o), " "));
}

}  // namespace ashlar
