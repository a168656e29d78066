#include "parallel/schedule/action.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

using testing::HasSubstr;

TEST(Action, TextAndBack) {
  const std::vector<std::pair<std::string, Action>> cases = {
      {"2F0", {ActionKind::kForward, 2, 0}},
      {"0B3", {ActionKind::kBackward, 0, 3}},
      {"2I1", {ActionKind::kBackwardInput, 2, 1}},
      {"0W3", {ActionKind::kBackwardWeight, 0, 3}},
      {"12SEND_F34", {ActionKind::kSendForward, 12, 34}},
      {"1RECV_F1", {ActionKind::kRecvForward, 1, 1}},
      {"2SEND_B2", {ActionKind::kSendBackward, 2, 2}},
      {"0RECV_B7", {ActionKind::kRecvBackward, 0, 7}},
      {"1UNSHARD", {ActionKind::kUnshard, 1, -1}},
      {"3RESHARD", {ActionKind::kReshard, 3, -1}},
      {"0REDUCE_GRAD", {ActionKind::kReduceGrads, 0, -1}},
      {"2REDUCE_GRAD11", {ActionKind::kReduceGrads, 2, 11}},
  };
  for (const auto& [text, action] : cases) {
    EXPECT_EQ(parse_action(text), action) << text;
    EXPECT_EQ(action_text(action), text);
  }
}

TEST(Action, BadTextNamesTheText) {
  for (const char* text :
       {"", "F0", "x", "0", "0F", "0Q1", "0F1x", "0 F1", "-1F0", "0F-1", "0f1", "99999999999F0", "0F99999999999",
        "0REDUCE_GRAD-1", "0UNSHARD1", "0SEND_X1", "0SEND_F", "(0F5;7B3)OVERLAP_F_B"}) {
    try {
      parse_action(text);
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("'" + std::string(text) + "'"));
    }
  }
}

TEST(Action, TransfersHaveTwoEnds) {
  EXPECT_EQ(matching_receive(parse_action("1SEND_F4")), parse_action("2RECV_F4"));
  EXPECT_EQ(matching_receive(parse_action("2SEND_B4")), parse_action("1RECV_B4"));
  for (const char* text : {"1SEND_F4", "2SEND_B0"}) {
    EXPECT_EQ(matching_send(matching_receive(parse_action(text))), parse_action(text));
  }
}

}  // namespace
}  // namespace ashlar
