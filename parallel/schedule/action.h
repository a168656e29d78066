// The alphabet of a pipeline schedule: what one rank does to one stage for one micro-batch.
#pragma once

#include <string>
#include <string_view>

namespace ashlar {

enum class ActionKind {
  kForward,         // "F": activations of a micro-batch through a stage
  kBackward,        // "B": input and weight gradients, layer by layer
  kBackwardInput,   // "I": input gradient only
  kBackwardWeight,  // "W": weight gradient only
  kSendForward,     // "SEND_F": the stage's output to the rank of the next stage
  kRecvForward,     // "RECV_F": the stage's input from the rank of the previous stage
  kSendBackward,    // "SEND_B": the gradient of the stage's input to the rank of the previous stage
  kRecvBackward,    // "RECV_B": the gradient of the stage's output from the rank of the next stage
  kUnshard,         // "UNSHARD": from here a stage's passes gather the parameters they read, layer by layer
  kReshard,         // "RESHARD": up to here
  kReduceGrads,     // "REDUCE_GRAD": a stage's gradients meet across the data axis, of a micro-batch or of the step
};

struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  int microbatch = -1;  // -1 for kUnshard, kReshard, and kReduceGrads of the whole step

  bool operator==(const Action&) const = default;
};

// Pure. "2F0", "1SEND_B3", "0REDUCE_GRAD": the text form of PyTorch's schedule CSV; "0REDUCE_GRAD3" is ours.
std::string action_text(const Action& action);
// Pure. Throws Error(kUsage) that names the text and what was expected.
Action parse_action(std::string_view text);

// Pure. "F", "SEND_B", "REDUCE_GRAD".
std::string_view kind_text(ActionKind kind);

// Pure.
bool is_compute(ActionKind kind);      // F, B, I, W
bool is_send(ActionKind kind);         // SEND_*
bool is_receive(ActionKind kind);      // RECV_*
bool is_transfer(ActionKind kind);     // SEND_*, RECV_*
bool has_microbatch(ActionKind kind);  // always; REDUCE_GRAD may have one

// Pure. The two ends of one transfer: a send carries the sender's stage, a receive the receiver's. "1SEND_F4" and
// "2RECV_F4" belong together, and so do "2SEND_B4" and "1RECV_B4".
Action matching_receive(const Action& send);
Action matching_send(const Action& receive);

}  // namespace ashlar
