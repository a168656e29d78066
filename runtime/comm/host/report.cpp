#include "runtime/comm/host/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace ashlar {
namespace {

std::string missing_line(FlightRecorder& recorder, const GroupInfo& group, int world_rank) {
  const StatusBoard& board = recorder.board();
  const std::string last =
      board.of(world_rank).present.load()
          ? fmt::format("; last finished in \"{}\": {}", group.name, board.last_finished(world_rank, group.id))
          : "";
  return fmt::format("\n  missing {}{}", board.stand(world_rank), last);
}

// The reporter may wait for a rank that itself waits for another: whoever is in no operation holds up the rest.
std::string idle_lines(FlightRecorder& recorder, const GroupInfo& group, std::span<const int> already_named) {
  std::string lines;
  for (int other = 0; other < recorder.board().num_ranks(); ++other) {
    const bool named = std::find(already_named.begin(), already_named.end(), other) != already_named.end();
    if (!named && other != recorder.world_rank() && recorder.board().computes(other)) {
      lines += missing_line(recorder, group, other);
    }
  }
  return lines;
}

void append_rank(std::string& list, int world_rank) {
  list += fmt::format("{}{}", list.empty() ? "" : ", ", world_rank);
}

}  // namespace

std::string late_collective_text(FlightRecorder& recorder, const GroupInfo& group, const OpInfo& op,
                                 double waited_seconds, std::span<const MemberState> members) {
  std::string entered;
  std::string absent;
  std::string stuck;
  std::string unseen;
  std::string lines;
  std::vector<int> named;
  for (size_t member = 0; member < members.size(); ++member) {
    const int world_rank = group.world_ranks[member];
    if (!members[member].visible) {
      append_rank(unseen, world_rank);
      continue;
    }
    append_rank(members[member].entered ? entered : absent, world_rank);
    if (!members[member].arrived) {
      lines += missing_line(recorder, group, world_rank);
      named.push_back(world_rank);
      if (members[member].entered) {
        append_rank(stuck, world_rank);
      }
    }
  }
  std::string text = fmt::format("rank {} waited {:.1f} s in {} of group \"{}\":", recorder.world_rank(),
                                 waited_seconds, op.text(), group.name);
  text += absent.empty() ? "" : fmt::format(" rank {} never entered it;", absent);
  text += stuck.empty() ? "" : fmt::format(" rank {} entered it and stopped inside;", stuck);
  if (absent.empty() && stuck.empty()) {
    text += fmt::format(" all members{} entered it, and it did not end;", unseen.empty() ? "" : " on this host");
  }
  text += unseen.empty() ? "" : fmt::format(" rank {} is on another host, not visible from here;", unseen);
  text += fmt::format(" entered: {} (see --distributed-timeout-minutes)", entered);
  return text + lines + idle_lines(recorder, group, named) + "\n" + recorder.board().table();
}

std::string late_exchange_text(FlightRecorder& recorder, const GroupInfo& group, const OpInfo& op,
                               double waited_seconds, const Message& unfinished) {
  const int peer = group.world_ranks[static_cast<size_t>(unfinished.peer)];
  const std::string message = unfinished.is_send
                                  ? fmt::format("rank {} never received what was sent to it ({} bytes, tag {})", peer,
                                                unfinished.bytes, unfinished.tag)
                                  : fmt::format("rank {} never sent what is to be received from it ({} bytes, tag {})",
                                                peer, unfinished.bytes, unfinished.tag);
  return fmt::format("rank {} waited {:.1f} s in {} of group \"{}\": {} (see --distributed-timeout-minutes)",
                     recorder.world_rank(), waited_seconds, op.text(), group.name, message) +
         missing_line(recorder, group, peer) + idle_lines(recorder, group, std::span(&peer, 1)) + "\n" +
         recorder.board().table();
}

std::string mismatch_text(const GroupInfo& group, const OpInfo& mine, int peer, const OpInfo& theirs) {
  return fmt::format("operation #{} of group \"{}\" is not the same on all members: rank {} calls {}, rank {} calls {}",
                     mine.number, group.name, group.world_ranks[static_cast<size_t>(group.rank)], mine.text(),
                     group.world_ranks[static_cast<size_t>(peer)], theirs.text());
}

}  // namespace ashlar
