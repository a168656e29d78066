#include "parallel/schedule/action.h"

#include <array>
#include <charconv>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

struct KindName {
  ActionKind kind;
  std::string_view name;
};

// Longer names stand before their prefixes, so that the first match while parsing is the right one.
constexpr std::array<KindName, 11> kKindNames = {{
    {ActionKind::kSendForward, "SEND_F"},
    {ActionKind::kRecvForward, "RECV_F"},
    {ActionKind::kSendBackward, "SEND_B"},
    {ActionKind::kRecvBackward, "RECV_B"},
    {ActionKind::kUnshard, "UNSHARD"},
    {ActionKind::kReshard, "RESHARD"},
    {ActionKind::kReduceGrads, "REDUCE_GRAD"},
    {ActionKind::kForward, "F"},
    {ActionKind::kBackward, "B"},
    {ActionKind::kBackwardInput, "I"},
    {ActionKind::kBackwardWeight, "W"},
}};

// Reads a run of digits at the front of `text` and removes it; -1 when there is none or it does not fit.
int take_number(std::string_view& text) {
  int value = -1;
  if (text.empty() || text.front() < '0' || text.front() > '9') return -1;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc()) return -1;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

}  // namespace

bool is_compute(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput ||
         kind == ActionKind::kBackwardWeight;
}

bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
}

bool is_receive(ActionKind kind) {
  return kind == ActionKind::kRecvForward || kind == ActionKind::kRecvBackward;
}

bool is_transfer(ActionKind kind) {
  return is_send(kind) || is_receive(kind);
}

bool has_microbatch(ActionKind kind) {
  return is_compute(kind) || is_transfer(kind);
}

std::string_view kind_text(ActionKind kind) {
  for (const KindName& entry : kKindNames) {
    if (entry.kind == kind) return entry.name;
  }
  throw Error(ErrorCode::kInternal, fmt::format("no action kind has the number {}", static_cast<int>(kind)));
}

std::string action_text(const Action& action) {
  if (action.microbatch >= 0 || has_microbatch(action.kind)) {
    return fmt::format("{}{}{}", action.stage, kind_text(action.kind), action.microbatch);
  }
  return fmt::format("{}{}", action.stage, kind_text(action.kind));
}

Action parse_action(std::string_view text) {
  constexpr std::string_view kExpected =
      "expected STAGE KIND MICROBATCH such as 2F0 or 1SEND_B3 (kinds F B I W SEND_F RECV_F SEND_B RECV_B), or STAGE "
      "KIND such as 0REDUCE_GRAD (kinds UNSHARD RESHARD REDUCE_GRAD, the last also with a MICROBATCH)";
  REQUIRE(text.find("OVERLAP_F_B") == std::string_view::npos, ErrorCode::kUsage,
          "schedule action '{}': overlapped pairs are not supported; write the two actions one after the other", text);
  std::string_view rest = text;
  Action action;
  action.stage = take_number(rest);
  REQUIRE(action.stage >= 0, ErrorCode::kUsage, "schedule action '{}' does not start with a stage; {}", text,
          kExpected);
  const KindName* found = nullptr;
  for (const KindName& entry : kKindNames) {
    if (rest.starts_with(entry.name)) {
      found = &entry;
      break;
    }
  }
  REQUIRE(found != nullptr, ErrorCode::kUsage, "schedule action '{}' has an unknown kind; {}", text, kExpected);
  action.kind = found->kind;
  rest.remove_prefix(found->name.size());
  if (action.kind == ActionKind::kReduceGrads) {
    action.microbatch = take_number(rest);
  } else if (has_microbatch(action.kind)) {
    action.microbatch = take_number(rest);
    REQUIRE(action.microbatch >= 0, ErrorCode::kUsage, "schedule action '{}' has no micro-batch; {}", text, kExpected);
  }
  REQUIRE(rest.empty(), ErrorCode::kUsage, "schedule action '{}' goes on with '{}'; {}", text, rest, kExpected);
  return action;
}

Action matching_receive(const Action& send) {
  if (send.kind == ActionKind::kSendForward) return {ActionKind::kRecvForward, send.stage + 1, send.microbatch};
  DCHECK(send.kind == ActionKind::kSendBackward, "{} is not a send", action_text(send));
  return {ActionKind::kRecvBackward, send.stage - 1, send.microbatch};
}

Action matching_send(const Action& receive) {
  if (receive.kind == ActionKind::kRecvForward)
    return {ActionKind::kSendForward, receive.stage - 1, receive.microbatch};
  DCHECK(receive.kind == ActionKind::kRecvBackward, "{} is not a receive", action_text(receive));
  return {ActionKind::kSendBackward, receive.stage + 1, receive.microbatch};
}

}  // namespace ashlar
