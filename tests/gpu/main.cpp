// gpu_check STEP: one step of what scripts/gpu_check.sh runs on a GPU. A process of its own for each step, because a
// fault on a GPU ends all work of the process.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <map>
#include <set>

#include "runtime/base/error.h"
#include "runtime/device/cuda/cuda_device.h"
#include "tests/gpu/gpu_timer.h"
#include "tests/gpu/steps.h"

namespace ashlar {
namespace {

const std::map<std::string, std::string> kCaseSteps = {{"kernels", "Cuda*:Dispatch*"},
                                                       {"conformance", "Conformance.*"}};
const std::map<std::string, void (*)(Bench&, StepReport&)> kBenchSteps = {
    {"matmul", check_matmul}, {"attention", check_attention}, {"bandwidth", check_bandwidth}};
const std::map<std::string, void (*)(bool, StepReport&)> kRankSteps = {
    {"train", check_train}, {"grid", check_grid}, {"nccl", check_nccl}};

constexpr int kCannotRunHere = 3;  // as scripts/gpu_check.sh takes it

std::set<std::string> step_names() {
  std::set<std::string> names;
  const auto add = [&](const auto& steps) {
    for (const auto& [name, step] : steps) {
      names.insert(name);
    }
  };
  add(kCaseSteps);
  add(kBenchSteps);
  add(kRankSteps);
  return names;
}

int run(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);  // takes its own flags away
  std::string step, name, out, filter;
  bool tiny = !figures_are_real();
  CLI::App app{"One step of the checks on a GPU. Exit code 1: a result is wrong, 3: there is no GPU."};
  app.add_option("step", step, "what to check")->required()->check(CLI::IsMember(step_names()));
  app.add_option("--name", name, "what to call it in the JSON file; the step unless given");
  app.add_option("--out", out, "a JSON file for what is found");
  app.add_option("--cases", filter, "kernels, conformance: only these cases, as --gtest_filter names them");
  app.add_flag("--tiny", tiny, "sizes that show nothing but that the calls work; always in an emulated build");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_code(ErrorCode::kUsage);
  }
  StepReport report(name.empty() ? step : name);
  try {
    if (num_cuda_devices() == 0) {
      fmt::print("{}: this process sees no GPU; nvidia-smi lists those of the machine\n", step);
      return kCannotRunHere;
    }
    if (const auto cases = kCaseSteps.find(step); cases != kCaseSteps.end()) {
      check_cases(filter.empty() ? cases->second : filter, report);
    } else if (const auto measured = kBenchSteps.find(step); measured != kBenchSteps.end()) {
      Bench bench(tiny);
      measured->second(bench, report);
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
