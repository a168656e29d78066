#include "tests/gpu/table.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/device/cuda/facts.h"
#include "tests/gpu/gpu_timer.h"

namespace ashlar {
namespace {

constexpr size_t kNameWidth = 44;
constexpr size_t kWidth = 16;

void print_cells(const std::vector<std::string>& cells) {
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i == 0) {
      fmt::print("  {:<{}}", cells[i], kNameWidth);
    } else {
      fmt::print(" {:>{}}", cells[i], kWidth);
    }
  }
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace

std::string Cell::shown() const {
  return !is_number ? text : digits > 3 ? fmt::format("{:.2e}", value) : fmt::format("{:.{}f}", value, digits);
}

void StepReport::begin(std::string title, std::vector<std::string> columns) {
  fmt::print("\n{}: {}{}\n", step_, title, figures_are_real() ? "" : "   [emulated: no figures]");
  print_cells(columns);
  tables_.push_back({std::move(title), std::move(columns), {}});
}

void StepReport::add(std::vector<Cell> row) {
  std::vector<std::string> shown;
  for (const Cell& cell : row) {
    shown.push_back(cell.shown());
  }
  print_cells(shown);
  tables_.back().rows.push_back(std::move(row));
}

void StepReport::fail(const std::string& what) {
  fmt::print("  WRONG: {}\n", what);
  failures_.push_back(what);
}

void StepReport::write(const std::string& path) const {
  const RankFacts machine = gather_rank_facts({}, {});
  nlohmann::json report = {{"step", step_},
                           {"emulated", !figures_are_real()},
                           {"passed", passed()},
                           {"failures", failures_},
                           {"tables", nlohmann::json::array()}};
  report["machine"] = {{"host", machine.host},
                       {"gpu", machine.name},
                       {"memory_bytes", machine.memory_bytes},
                       {"driver_version", machine.driver_version},
                       {"runtime_version", machine.runtime_version}};
  for (const Table& table : tables_) {
    nlohmann::json rows = nlohmann::json::array();
    for (const auto& row : table.rows) {
      nlohmann::json cells;
      for (size_t i = 0; i < row.size(); ++i) {
        // JSON has no number that is not finite.
        const bool finite = !row[i].is_number || std::isfinite(row[i].value);
        cells[table.columns[i]] =
            row[i].is_number && finite ? nlohmann::json(row[i].value) : nlohmann::json(row[i].shown());
      }
      rows.push_back(cells);
    }
    report["tables"].push_back({{"title", table.title}, {"rows", rows}});
  }
  std::ofstream file(path);
  file << report.dump(1) << "\n";
  REQUIRE(file.good(), ErrorCode::kUsage, "--out {}: cannot be written", path);
}

}  // namespace ashlar
