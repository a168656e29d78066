// The checks behind validate(): validate.cpp has those of the lists themselves, validate_traffic.cpp those of what
// travels.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/schedule/order.h"
#include "parallel/schedule/schedule.h"

namespace ashlar {

// Collects what is wrong. Every check walks the lists and speaks of places, so that a message can be found in the CSV.
class Validator {
 public:
  explicit Validator(const Schedule& schedule) : schedule_(schedule) {}

  std::vector<std::string> run();

 private:
  template <typename... Args>
  void problem(fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  template <typename Visit>
  void for_each_action(Visit visit) const {
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      for (size_t position = 0; position < schedule_.actions[static_cast<size_t>(rank)].size(); ++position) {
        visit(Place{rank, position}, schedule_.actions[static_cast<size_t>(rank)][position]);
      }
    }
  }

  std::string where(Place place) const;

  void check_ranges();
  void check_placement_and_duplicates();
  void check_compute(const ActionIndex& index);
  void check_before(const ActionIndex& index, const Action& first, const Action& second);
  void check_microbatch_order();
  void check_transfers(const ActionIndex& index);
  void check_transfer_ends(const ActionIndex& index, Place place, const Action& action);
  void check_handover(const ActionIndex& index, Place place, const Action& action);
  void check_pair_order();
  void check_reduce_grads(const ActionIndex& index);
  std::optional<Place> weight_grad(const ActionIndex& index, int stage, int microbatch) const;
  void check_reduction(const ActionIndex& index, const Action& reduce, int microbatch);
  void check_windows();
  void check_deadlock();

  const Schedule& schedule_;
  std::vector<std::string> problems_;
};

}  // namespace ashlar
