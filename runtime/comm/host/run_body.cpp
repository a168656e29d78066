#include "runtime/comm/host/run_body.h"

namespace ashlar {
namespace {

constexpr size_t kDumpedOperations = 8;  // of each group; the last few say where a rank stood, 64 would bury it

bool concerns_peers(ErrorCode code) {
  return code == ErrorCode::kTimeout || code == ErrorCode::kCommunication;
}

Outcome failed(HostRank& rank, RankContext& context, ErrorCode code, const std::string& text) {
  context.log.error("{}", text);
  if (concerns_peers(code)) {
    context.log.error("{}", rank.recorder().dump(kDumpedOperations));
  }
  rank.board().end_job(rank.recorder().world_rank(), code, text);
  return {.exit_status = exit_code(code), .orderly = false, .peers_report = concerns_peers(code)};
}

Outcome guarded(HostRank& rank, RankContext& context, const std::function<Outcome()>& step) {
  try {
    return step();
  } catch (const AgreedError& error) {
    if (context.world.rank() == 0) {
      context.log.error("{}", error.what());
    }
    return {.exit_status = exit_code(error.code())};
  } catch (const Error& error) {
    return failed(rank, context, error.code(),
                  error.code() == ErrorCode::kInternal ? fmt::format("{} ({})", error.what(), error.place_text())
                                                       : std::string(error.what()));
  } catch (const std::exception& error) {
    return failed(rank, context, ErrorCode::kInternal, error.what());
  }
}

}  // namespace

Outcome run_body(HostRank& rank, RankContext& context, const std::function<int(RankContext&)>& body) {
  const Outcome outcome = guarded(rank, context, [&] { return Outcome{.exit_status = body(context)}; });
  if (!outcome.orderly) {
    return outcome;
  }
  return guarded(rank, context, [&] {
    context.world.barrier();
    return outcome;
  });
}

}  // namespace ashlar
