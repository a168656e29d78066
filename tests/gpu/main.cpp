// gpu_check STEP: one step of what scripts/gpu_check.sh runs on a GPU. A process of its own for each step, because a
// fault on a GPU ends all work of the process.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <set>

#include "runtime/base/error.h"
#include "tests/gpu/gpu_timer.h"
#include "tests/gpu/steps.h"

namespace ashlar {
namespace {

const std::map<std::string, void (*)(Bench&, StepReport&)> kBenchSteps = {
    {"matmul", check_matmul}, {"attention", check_attention}, {"bandwidth", check_bandwidth}};
const std::map<std::string, void (*)(bool, StepReport&)> kRankSteps = {
    {"train", check_train}, {"grid", check_grid}, {"nccl", check_nccl}};

std::set<std::string> step_names() {
  std::set<std::string> names;
  for (const auto& [name, step] : kBenchSteps) {
    names.insert(name);
  }
  for (const auto& [name, step] : kRankSteps) {
    names.insert(name);
  }
  return names;
}

int run(int argc, char** argv) {
  std::string step, out;
  bool tiny = !figures_are_real();
  CLI::App app{"One step of the checks on a GPU. Exit code 1: a result is wrong."};
  app.add_option("step", step, "what to check")->required()->check(CLI::IsMember(step_names()));
  app.add_option("--out", out, "a JSON file for what is measured");
  app.add_flag("--tiny", tiny, "sizes that show nothing but that the calls work; always in an emulated build");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_code(ErrorCode::kUsage);
  }
  StepReport report(step);
  try {
    const auto on_bench = kBenchSteps.find(step);
    if (on_bench != kBenchSteps.end()) {
      Bench bench(tiny);
      on_bench->second(bench, report);
    } else {
      kRankSteps.at(step)(tiny, report);
    }
  } catch (const Error& error) {
    report.fail(fmt::format("{} ({})", error.what(), error.place_text()));
  }
  if (!out.empty()) {
    report.write(out);
  }
  return report.passed() ? 0 : 1;
}

}  // namespace
}  // namespace ashlar

int main(int argc, char** argv) {
  return ashlar::run(argc, argv);
}
