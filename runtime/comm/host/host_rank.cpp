#include "runtime/comm/host/host_rank.h"

#include <fmt/format.h>

namespace ashlar {

void HostRank::fail(ErrorCode code, const std::string& text) {
  board().end_job(recorder_.world_rank(), code, text);
  throw Error(code, text);
}

void HostRank::throw_job_ended() {
  const std::string reason = board().end_reason();
  throw Error(board().end_code(),
              fmt::format("stopped because rank {} ended the job ({}); this is {}", board().ended_by(),
                          reason.substr(0, reason.find('\n')), board().stand(recorder_.world_rank())));
}

}  // namespace ashlar
