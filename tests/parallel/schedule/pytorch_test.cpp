// PyTorch's own schedules and lowering as an outside check. Its receives stand elsewhere than ours, so what must agree
// is the order of compute actions and of the messages between every ordered pair of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "parallel/schedule/csv.h"
#include "parallel/schedule/simulate.h"
#include "tests/parallel/schedule/text_schedule.h"

namespace ashlar {
namespace {

using testing::ElementsAre;

const std::string kFolder = ASHLAR_SOURCE_DIR "/../shared/data/schedules/";

// PyTorch's simulator: every action, transfers included, takes one step, and a receive holds its rank.
constexpr ActionCosts kOneStepEach{.forward = 1,
                                   .backward = 1,
                                   .backward_input = 1,
                                   .backward_weight = 1,
                                   .send = 1,
                                   .receive = 1,
                                   .receive_blocks = true};

class PyTorchSchedules : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::ifstream(kFolder + "pytorch_lowering_inline_vectors.json").good()) GTEST_SKIP() << "no shared data";
  }

  static Schedule csv(const std::string& name, CsvForm form) {
    std::ifstream in(kFolder + name);
    EXPECT_TRUE(in.good()) << name;
    return read_csv(in, form, name);
  }

  static nlohmann::json vectors() {
    std::ifstream in(kFolder + "pytorch_lowering_inline_vectors.json");
    return nlohmann::json::parse(in);
  }
};

std::vector<Action> parse_cells(const nlohmann::json& cells) {
  std::vector<Action> list;
  for (const nlohmann::json& cell : cells) {
    if (!cell.get<std::string>().empty()) list.push_back(parse_action(cell.get<std::string>()));
  }
  return list;
}

std::vector<std::vector<Action>> compute_only(const Schedule& schedule) {
  std::vector<std::vector<Action>> lists;
  for (const std::vector<Action>& list : schedule.actions) {
    lists.emplace_back();
    std::copy_if(list.begin(), list.end(), std::back_inserter(lists.back()),
                 [](const Action& a) { return is_compute(a.kind); });
  }
  return lists;
}

// Per ordered pair of ranks, the messages in the order of the sender or of the receiver, named by the receive.
std::map<std::pair<int, int>, std::string> messages(const Schedule& schedule, bool of_sender) {
  std::map<std::pair<int, int>, std::string> result;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const Action& action : schedule.actions[static_cast<size_t>(rank)]) {
      if (of_sender ? !is_send(action.kind) : !is_receive(action.kind)) continue;
      const Action other = of_sender ? matching_receive(action) : matching_send(action);
      const int peer = schedule.stage_to_rank[static_cast<size_t>(other.stage)];
      const std::pair<int, int> pair = of_sender ? std::pair(rank, peer) : std::pair(peer, rank);
      result[pair] += action_text(of_sender ? other : action) + " ";
    }
  }
  return result;
}

void expect_same_traffic(const Schedule& ours, const Schedule& theirs) {
  EXPECT_EQ(compute_only(ours), compute_only(theirs));
  EXPECT_EQ(messages(ours, true), messages(theirs, true));
  EXPECT_EQ(messages(ours, false), messages(theirs, false));
}

TEST_F(PyTorchSchedules, ZeroBubbleInterleaved) {
  const Schedule compute = csv("zb1p_2rank_2stagep_compute.csv", CsvForm::kComputeOnly);
  const Schedule comms = csv("zb1p_2rank_2stagep_comms.csv", CsvForm::kComputeComms);
  EXPECT_THAT(compute.stage_to_rank, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(compute.num_microbatches, 8);
  EXPECT_THAT(validate(compute), ElementsAre());
  EXPECT_THAT(validate(comms), ElementsAre());

  const Schedule lowered = lower(merge_backward(compute), {.grad_reduce = GradReduce::kNone});
  EXPECT_THAT(validate(lowered), ElementsAre());
  expect_same_traffic(lowered, comms);
  EXPECT_EQ(simulate(comms, kOneStepEach).total, 113);
  EXPECT_THAT(validate(lower(compute)), ElementsAre());  // unmerged, with reductions
}

TEST_F(PyTorchSchedules, SendAndReceiveVectors) {
  const nlohmann::json all = vectors();
  ASSERT_EQ(all["send_recv"].size(), 2U);
  for (const nlohmann::json& vector : all["send_recv"]) {
    SCOPED_TRACE(vector["name"].get<std::string>());
    Schedule compute, comms;
    compute.stage_to_rank = comms.stage_to_rank = vector["stage_to_rank"].get<std::vector<int>>();
    compute.num_microbatches = comms.num_microbatches = 2;
    for (const nlohmann::json& cells : vector["compute"]) compute.actions.push_back(parse_cells(cells));
    for (const nlohmann::json& cells : vector["comms"]) comms.actions.push_back(parse_cells(cells));
    // One vector has W beside B, from a time when B meant the input gradient.
    for (Schedule* schedule : {&compute, &comms}) {
      bool split = false;
      for (const std::vector<Action>& list : schedule->actions) {
        for (const Action& a : list) split = split || a.kind == ActionKind::kBackwardWeight;
      }
      for (std::vector<Action>& list : schedule->actions) {
        for (Action& a : list) {
          if (split && a.kind == ActionKind::kBackward) a.kind = ActionKind::kBackwardInput;
        }
      }
    }
    EXPECT_THAT(validate(compute), ElementsAre());
    EXPECT_THAT(validate(comms), ElementsAre());
    expect_same_traffic(lower(compute, {.grad_reduce = GradReduce::kNone}), comms);
    EXPECT_EQ(simulate(comms, kOneStepEach).total, vector["simulated_steps"].get<double>());
  }
}

TEST_F(PyTorchSchedules, ParsingReductionAndMerging) {
  const nlohmann::json all = vectors();
  for (const nlohmann::json& text : all["action_parse"]) {
    EXPECT_EQ(action_text(parse_action(text.get<std::string>())), text.get<std::string>());
  }
  for (const nlohmann::json& vector : all["reduce_grad_n_microbatches_2"]) {
    Schedule compute;
    compute.num_microbatches = 2;
    compute.actions = {parse_cells(vector["compute"])};
    compute.stage_to_rank.resize(compute.actions[0].size() > 4 ? 2 : 1, 0);
    EXPECT_THAT(lower(compute).actions, ElementsAre(parse_cells(vector["comms"])));
  }
  for (const nlohmann::json& vector : all["merge_bw"]) {
    Schedule compute;
    compute.num_microbatches = 3;
    compute.stage_to_rank = {0};
    compute.actions = {parse_cells(vector["compute"])};
    EXPECT_THAT(merge_backward(compute).actions, ElementsAre(parse_cells(vector["merged"])));
  }
}

}  // namespace
}  // namespace ashlar
