// gpu_check STEP: one step of what scripts/gpu_check.sh runs on a GPU. A process of its own for each step, because a
// fault on a GPU ends all work of the process.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "runtime/base/error.h"
#include "tests/gpu/gpu_timer.h"
#include "tests/gpu/steps.h"

namespace ashlar {
namespace {

int run(int argc, char** argv) {
  std::string step, out;
  bool tiny = !figures_are_real();
  CLI::App app{"One step of the checks on a GPU. Exit code 1: a result is wrong."};
  app.add_option("step", step, "matmul, attention, bandwidth, grid or nccl")
      ->required()
      ->check(CLI::IsMember({"matmul", "attention", "bandwidth", "grid", "nccl"}));
  app.add_option("--out", out, "a JSON file for what is measured");
  app.add_flag("--tiny", tiny, "sizes that show nothing but that the calls work; always in an emulated build");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_code(ErrorCode::kUsage);
  }
  StepReport report(step);
  try {
    if (step == "grid" || step == "nccl") {
      (step == "grid" ? check_grid : check_nccl)(tiny, report);
    } else {
      Bench bench(tiny);
      const auto check = step == "matmul" ? check_matmul : step == "attention" ? check_attention : check_bandwidth;
      check(bench, report);
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
