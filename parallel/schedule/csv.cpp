#include "parallel/schedule/csv.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

constexpr int kNoRank = -1;

std::string without_spaces(std::string_view text) {
  std::string kept;
  std::copy_if(text.begin(), text.end(), std::back_inserter(kept),
               [](unsigned char c) { return std::isspace(c) == 0; });
  return kept;
}

std::vector<Action> read_row(const std::string& row, CsvForm form, const std::string& file_name, int rank) {
  std::vector<Action> list;
  size_t begin = 0;
  for (int column = 1; begin <= row.size(); ++column) {
    const size_t end = std::min(row.find(',', begin), row.size());
    const std::string cell = without_spaces(std::string_view(row).substr(begin, end - begin));
    begin = end + 1;
    const std::string where = fmt::format("{} row {} column {}", file_name, rank + 1, column);
    if (cell.empty()) {
      REQUIRE(form == CsvForm::kComputeOnly, ErrorCode::kUsage,
              "{}: empty cell; a schedule with explicit transfers has none", where);
      continue;
    }
    try {
      list.push_back(parse_action(cell));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", where, error.what()));
    }
    REQUIRE(form == CsvForm::kComputeComms || is_compute(list.back().kind), ErrorCode::kUsage,
            "{}: '{}' in a compute-only schedule, which holds only F, B, I and W; lowering adds the rest", where, cell);
  }
  return list;
}

}  // namespace

void write_csv(std::ostream& out, const Schedule& schedule, CsvForm form) {
  for (const std::vector<Action>& list : schedule.actions) {
    const char* separator = "";
    for (const Action& action : list) {
      if (form == CsvForm::kComputeOnly && !is_compute(action.kind)) continue;
      out << separator << action_text(action);
      separator = ",";
    }
    out << '\n';
  }
}

Schedule read_csv(std::istream& in, CsvForm form, const std::string& file_name) {
  Schedule schedule;
  schedule.name = file_name;
  for (std::string row; std::getline(in, row);) {
    const int rank = schedule.num_ranks();
    schedule.actions.emplace_back();
    if (!without_spaces(row).empty()) schedule.actions.back() = read_row(row, form, file_name, rank);
  }
  while (!schedule.actions.empty() && schedule.actions.back().empty()) schedule.actions.pop_back();
  size_t num_actions = 0;
  for (const std::vector<Action>& list : schedule.actions) num_actions += list.size();
  REQUIRE(num_actions > 0, ErrorCode::kUsage, "{}: no actions", file_name);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const Action& action : schedule.actions[static_cast<size_t>(rank)]) {
      const size_t stage = static_cast<size_t>(action.stage);
      // Every stage and every micro-batch has actions of its own, so larger numbers are slips of the pen.
      REQUIRE(stage < num_actions && action.microbatch < static_cast<int64_t>(num_actions), ErrorCode::kUsage,
              "{} row {}: {} in a file of {} actions", file_name, rank + 1, action_text(action), num_actions);
      if (stage >= schedule.stage_to_rank.size()) schedule.stage_to_rank.resize(stage + 1, kNoRank);
      int& owner = schedule.stage_to_rank[stage];
      REQUIRE(owner == kNoRank || owner == rank, ErrorCode::kUsage,
              "{} row {}: {} runs stage {}, which row {} runs too; a stage lives on one rank", file_name, rank + 1,
              action_text(action), action.stage, owner + 1);
      owner = rank;
      schedule.num_microbatches = std::max(schedule.num_microbatches, action.microbatch + 1);
    }
  }
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    REQUIRE(schedule.stage_to_rank[static_cast<size_t>(stage)] != kNoRank, ErrorCode::kUsage,
            "{}: no row runs stage {}, but stage {} exists", file_name, stage, schedule.num_stages() - 1);
  }
  return schedule;
}

}  // namespace ashlar
