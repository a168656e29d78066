// What is said of settings that are legal, and of no use or not what one may think.
#include <fmt/format.h>

#include <algorithm>

#include "parallel/train/flags.h"
#include "parallel/train/options_parse.h"
#include "runtime/base/error.h"

namespace ashlar {

std::vector<std::string> unused_notes(const std::set<std::string>& given, const TrainOptions& o) {
  std::vector<std::string> notes;
  const auto unused = [&](const char* name, bool when, const std::string& why) {
    if (when && given.count(name)) {
      notes.push_back(fmt::format("--{} has no use here: {}", name, why));
    }
  };
  for (const char* name : {"adam-beta1", "adam-beta2", "adam-eps"}) {
    unused(name, o.optimizer != "adam", "the optimizer is sgd");
  }
  for (const char* name : {"min-lr", "lr-decay-iters", "lr-decay-samples"}) {
    unused(name, o.lr_decay_style == "constant" && o.lr_warmup_fraction < 0, "--lr-decay-style is constant");
  }
  unused("lr-warmup-init", o.lr_warmup_iters == 0 && o.lr_warmup_samples == 0 && o.lr_warmup_fraction <= 0,
         "there is no warm-up");
  unused("eval-iters", o.eval_interval == 0, "without --eval-interval there is no validation");
  unused("split", !o.train_data_path.empty() || o.mock_data, "it splits the data of --data-path");
  unused("check-weight-hash", o.metrics_file.empty(), "the hashes go to --metrics-file");
  for (const char* name : {"gemm", "allow-tf32"}) {
    unused(name, o.device == "cpu", "--device cpu: it is about matrix products on GPUs");
  }
  for (const char* name : {"loss-scale", "initial-loss-scale", "min-loss-scale", "loss-scale-window", "hysteresis"}) {
    unused(name, !o.fp16, "fp32 and --bf16 need no loss scale");
  }
  for (const char* name : {"train-tokens", "peak-tflops", "mfu"}) {
    unused(name, !o.dry_run, "it is for --dry-run");
  }
  for (const char* name : {"overlap-grad-reduce", "overlap-param-gather"}) {
    unused(name, o.device == "cpu", "on CPUs nothing is sent while others compute");
  }
  try {
    const int stage = zero_stage_of(o);
    if (stage == 0 && o.device != "cpu") {
      unused("overlap-param-gather", true, "no weights are gathered with " + zero_stage_text(o));
    }
    if (stage >= 2 && !reduces_each_microbatch(o)) {
      notes.push_back(fmt::format(
          "{} with --grad-reduce step: gradients are whole on every rank until the step's end, as with ZeRO-1; "
          "--grad-reduce micro-batch shards them",
          zero_stage_text(o)));
    }
  } catch (const Error&) {  // validate_options says it
  }
  unused("sequence-parallel", o.tensor_model_parallel_size == 1, "--tensor-model-parallel-size is 1");
  unused("exit-on-missing-checkpoint", o.load.empty(), "there is no --load");
  for (const char* name : {"test-hang", "test-nan", "test-overflow", "test-write-fault", "test-offload-fault"}) {
    unused(name, o.dry_run, "--dry-run trains nothing");
  }
  const auto repeated = [&](const char* flag, const std::vector<std::string>& paths) {
    for (size_t at = 0; at < paths.size(); ++at) {
      const bool is_first = std::find(paths.begin(), paths.end(), paths[at]) == paths.begin() + at;
      const auto times = std::ranges::count(paths, paths[at]);
      if (is_first && times > 1 && !parse_real(paths[at])) {  // weights may be equal
        notes.push_back(fmt::format("--{} has {} {} times: so often its samples are read", flag, paths[at], times));
      }
    }
  };
  repeated("data-path", o.data_path);
  repeated("train-data-path", o.train_data_path);
  repeated("valid-data-path", o.valid_data_path);
  return notes;
}

}  // namespace ashlar
