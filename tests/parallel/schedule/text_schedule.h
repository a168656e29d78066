// Schedules written as text, and back, for tests.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace ashlar {

inline std::vector<Action> parse_list(const std::string& text) {
  std::istringstream words(text);
  std::vector<Action> list;
  for (std::string word; words >> word;) list.push_back(parse_action(word));
  return list;
}

inline std::string list_text(const std::vector<Action>& list) {
  std::string text;
  for (const Action& action : list) {
    if (!text.empty()) text += ' ';
    text += action_text(action);
  }
  return text;
}

inline Schedule text_schedule(std::vector<int> stage_to_rank, int num_microbatches,
                              const std::vector<std::string>& lists) {
  Schedule schedule;
  schedule.name = "text";
  schedule.num_microbatches = num_microbatches;
  schedule.stage_to_rank = std::move(stage_to_rank);
  for (const std::string& list : lists) schedule.actions.push_back(parse_list(list));
  return schedule;
}

}  // namespace ashlar
