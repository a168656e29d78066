#include "runtime/comm/nccl/nccl_world.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "runtime/comm/nccl/nccl_communicator.h"
#include "runtime/device/cuda/cuda_check.h"

namespace ashlar {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

int version_of(const NcclLibrary& nccl) {
  int version = 0;
  REQUIRE(nccl.version(&version) == ncclSuccess, ErrorCode::kUsage,
          "--distributed-backend nccl: NCCL does not say its version");
  return version;
}

// What a user has set stays.
void set_defaults(int version) {
  constexpr int kNoOverwrite = 0;
  setenv("NCCL_DEBUG", "WARN", kNoOverwrite);  // so that errors carry a text
  int driver = 0;
  check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion", 0);
  // Communicators start their operations in the order in which the host issued them. With CUDA before 12.3 that would
  // also make each wait for the end of the one before.
  if (version >= kConcurrentNccl && driver >= 12030) {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", kNoOverwrite);
  }
}

ncclUniqueId share_id(RankContext& host, const NcclLibrary& nccl) {
  ncclUniqueId id = {};
  agree(host.world, [&] {
    const ncclResult_t result = host.world.rank() == 0 ? nccl.unique_id(&id) : ncclSuccess;
    REQUIRE(result == ncclSuccess, ErrorCode::kCommunication, "NCCL failed at ncclGetUniqueId: {}; {}",
            nccl.error_text(result), nccl.last_error(nullptr));
  });
  const auto stream = host.device.create_stream();
  host.world
      .broadcast(view_of(reinterpret_cast<uint8_t*>(id.internal), {static_cast<int64_t>(sizeof(id.internal))}), 0,
                 *stream)
      .wait_host();
  return id;
}

// Meets the other ranks. While it waits, the status board says who has come.
ncclComm_t start(NcclRank& rank, RankContext& host, const GroupInfo& group, double init_timeout_seconds) {
  const ncclUniqueId id = share_id(host, rank.nccl());
  const GroupInfo meeting{.id = child_group_id(group.id, 0, -2),
                          .name = "start of NCCL",
                          .rank = group.rank,
                          .world_ranks = group.world_ranks};
  const int slot = rank.recorder().open_group(meeting.id, meeting.name, GroupKind::kChannel);
  const OpInfo op{.number = 1, .kind = OpKind::kSplit};
  rank.recorder().enter(slot, op);
  ncclConfig_t config = rank.config(group.name);
  ncclComm_t& comm = rank.new_comm();
  try {
    rank.call(
        "ncclCommInitRankConfig", [&] { return rank.nccl().init(&comm, group.size(), id, group.rank, &config); }, comm,
        init_timeout_seconds,
        [&](double waited) {
          return fmt::format(
              "rank {} waited {:.1f} s for the other ranks at the start of NCCL "
              "(ncclCommInitRankConfig)\n{}",
              rank.recorder().world_rank(), waited, rank.board().table());
        });
  } catch (...) {
    if (comm != nullptr) {
      rank.nccl().abort(comm);
    }
    throw;
  }
  rank.recorder().finish(slot, op);
  rank.recorder().close_group(slot);
  return comm;
}

}  // namespace

int nccl_version() {
  return version_of(load_nccl());
}

int nccl_header_version() {
  return NCCL_VERSION_CODE;
}

std::unique_ptr<Communicator> make_nccl_world(RankContext& host, Device& device, double init_timeout_seconds) {
  const GroupInfo group{.id = child_group_id(host.world.group_id(), 0, -3),
                        .name = "world",
                        .rank = host.world.rank(),
                        .world_ranks = {host.world.world_ranks().begin(), host.world.world_ranks().end()}};
  NcclLibrary nccl{};
  int version = 0;
  agree(host.world, [&] {
    nccl = load_nccl();
    version = version_of(nccl);
    REQUIRE(version >= kOldestNccl, ErrorCode::kUsage,
            "--distributed-backend nccl: NCCL {} is loaded, {} or later is needed; put a newer one on LD_LIBRARY_PATH, "
            "or use --distributed-backend staged",
            version_text(version), version_text(kOldestNccl));
    set_defaults(version);
  });
  const auto rank = std::make_shared<NcclRank>(host, device, nccl, version);
  rank->use_device();  // where NCCL starts its kernels
  ncclComm_t comm = nullptr;
  if (group.size() > 1) {
    comm = start(*rank, host, group, init_timeout_seconds);
  }
  return std::make_unique<NcclCommunicator>(rank, comm, group);
}

}  // namespace ashlar
