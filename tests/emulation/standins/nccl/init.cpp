// How communicators come and go: start, split, finalize, destroy, abort. With blocking = 0 the calls go on in a thread
// of the communicator's own, as the real ones do, and whoever does not wait for the end is told.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "tests/emulation/standins/cudart/standin.h"
#include "tests/emulation/standins/nccl/calls.h"

namespace ashlar::standin {
namespace {

constexpr const char* kIdPrefix = "ashlar-standin:";

std::vector<int> ranks_where(ncclComm& comm, const std::function<bool(RankCell&)>& holds) {
  std::vector<int> ranks;
  for (int rank = 0; rank < comm.size; ++rank) {
    if (holds(comm.cell(rank))) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

bool all_come(ncclComm& comm, const std::string& what, const std::function<bool(RankCell&)>& absent) {
  const auto missing = [&] { return ranks_where(comm, absent); };
  return wait_for(
      comm, what, [&] { return missing().empty(); }, missing);
}

void refuse_shared_devices(ncclComm& comm) {
  for (int first = 0; first < comm.size; ++first) {
    for (int second = first + 1; second < comm.size; ++second) {
      if (comm.cell(first).device.load() == comm.cell(second).device.load()) {
        fail_all(comm, ncclInvalidUsage,
                 "Duplicate GPU detected : rank " + std::to_string(first) + " and rank " + std::to_string(second) +
                     " of communicator \"" + comm.name + "\" both on CUDA device " +
                     std::to_string(comm.cell(first).device.load() - 1));
      }
    }
  }
}

// Meets the other ranks of a new communicator.
ncclResult_t join(ncclComm& comm) {
  const NcclFaultPlan& fault = nccl_config().fault;
  const bool hangs = fault.fault == NcclFault::kInitHangs && fault.rank == comm.rank &&
                     (fault.communicator.empty() || fault.communicator == comm.name);
  RegionHead& head = comm.region->head();
  int32_t expected = 0;
  if (!head.num_ranks.compare_exchange_strong(expected, comm.size) && expected != comm.size) {
    fail_all(comm, ncclInvalidUsage,
             describe(comm) + " is started with another number of ranks than the " + std::to_string(expected) +
                 " of another rank");
    return ncclInvalidUsage;
  }
  RankCell& mine = comm.cell(comm.rank);
  if (mine.joined.load() != 0) {
    fail_all(comm, ncclInvalidUsage, describe(comm) + " is started twice");
    return ncclInvalidUsage;
  }
  mine.pid.store(getpid());
  mine.device.store(comm.device + 1);
  mine.joined.store(hangs ? 0 : 1);
  comm.region->changed();
  if (!all_come(comm, "ncclCommInitRankConfig", [](RankCell& cell) { return cell.joined.load() == 0; })) {
    return comm.aborted ? ncclInternalError : error_of(comm);
  }
  refuse_shared_devices(comm);
  return error_of(comm);
}

std::shared_ptr<ncclComm> make_comm(std::string region_name, int rank, int size, const ncclConfig_t& config) {
  auto comm = std::make_shared<ncclComm>();
  comm->region_name = std::move(region_name);
  comm->name = config.commName == nullptr ? "" : config.commName;
  comm->rank = rank;
  comm->size = size;
  cudaGetDevice(&comm->device);
  comm->blocking = config.blocking != 0;
  comm->region = std::make_unique<Region>(comm->region_name, size);
  return comm;
}

// The ranks of the parent that a color joins, in the order of their keys; and the rank among them.
std::optional<std::pair<int, int>> place_of(ncclComm& parent, int color) {
  std::vector<std::pair<int, int>> members;  // key, rank in the parent
  for (int rank = 0; rank < parent.size; ++rank) {
    if (parent.cell(rank).color == color) {
      members.emplace_back(parent.cell(rank).key, rank);
    }
  }
  std::sort(members.begin(), members.end());
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].second == parent.rank) {
      return std::pair(static_cast<int>(i), static_cast<int>(members.size()));
    }
  }
  return std::nullopt;
}

ncclResult_t split(ncclComm& parent, int color, int key, ncclComm_t* out, const ncclConfig_t& config) {
  const uint64_t number = parent.num_splits;
  RankCell& mine = parent.cell(parent.rank);
  const auto behind = [&](uint64_t goal) {
    return all_come(parent, "ncclCommSplit", [goal](RankCell& cell) { return cell.read_splits.load() < goal; });
  };
  if (!behind(number - 1)) {
    return ncclInternalError;
  }
  mine.color = color;
  mine.key = key;
  mine.splits.store(number);
  parent.region->changed();
  if (!all_come(parent, "ncclCommSplit", [number](RankCell& cell) { return cell.splits.load() < number; })) {
    return ncclInternalError;
  }
  const auto place = color == NCCL_SPLIT_NOCOLOR ? std::nullopt : place_of(parent, color);
  mine.read_splits.store(number);
  parent.region->changed();
  if (!place) {
    *out = nullptr;
    return ncclSuccess;
  }
  const auto child = make_comm(parent.region_name + "_" + std::to_string(number) + "_" + std::to_string(color),
                               place->first, place->second, config);
  child->device = parent.device;
  add_comm(child);
  parent.child = child.get();
  child->aborted = child->aborted || parent.aborted;
  const ncclResult_t result = join(*child);
  parent.child = nullptr;
  // As in the real one, the handle is there only when the parent is out of ncclInProgress.
  __atomic_store_n(out, child.get(), __ATOMIC_RELEASE);
  return result;
}

ncclResult_t finalize(ncclComm& comm) {
  comm.finalized = true;
  if (comm.stream.load() != nullptr) {
    demand(comm.stream);
  }
  while (comm.num_finished.load() < comm.num_enqueued && !comm.aborted && error_of(comm) == ncclSuccess) {
    const uint32_t seen = comm.region->changes();
    if (comm.num_finished.load() < comm.num_enqueued) {
      comm.region->wait_for_change(seen);
    }
  }
  if (comm.aborted || error_of(comm) != ncclSuccess) {
    return comm.aborted ? ncclInternalError : error_of(comm);
  }
  // A message that was offered to this rank, or is wanted of it, has no other side.
  comm.cell(comm.rank).finalized.store(1);
  comm.region->changed();
  const auto absent = [](RankCell& cell) { return cell.finalized.load() == 0; };
  while (!ranks_where(comm, absent).empty() && !comm.aborted && error_of(comm) == ncclSuccess) {
    comm.region->wait_for_change(comm.region->changes());
  }
  return error_of(comm);
}

// Runs the rest of a call: at once, or in the background, where the communicator is ncclInProgress until it is over.
ncclResult_t proceed(const std::shared_ptr<ncclComm>& comm, std::function<ncclResult_t()> rest) {
  if (comm->blocking) {
    return rest();
  }
  in_background(comm, std::move(rest));
  return ncclInProgress;
}

ncclConfig_t config_or_default(const ncclConfig_t* config) {
  const ncclConfig_t standard = NCCL_CONFIG_INITIALIZER;
  return config == nullptr ? standard : *config;
}

bool is_initialized(const ncclConfig_t* config) {
  return config == nullptr || (config->magic == 0xcafebeef && config->size == sizeof(ncclConfig_t));
}

}  // namespace

void in_background(const std::shared_ptr<ncclComm>& comm, std::function<ncclResult_t()> rest) {
  if (comm->background.joinable()) {
    comm->background.join();  // the last one is over: the program has seen that
  }
  comm->state = ncclInProgress;
  comm->background = std::thread([comm, rest = std::move(rest)] {
    cudaSetDevice(comm->device);
    comm->state = rest();
  });
}

}  // namespace ashlar::standin

using namespace ashlar::standin;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  remove_stale_regions();
  std::memset(id, 0, sizeof(*id));
  const std::string text = kIdPrefix + new_region_name();
  std::memcpy(id->internal, text.c_str(), text.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int num_ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const std::string text(id.internal, strnlen(id.internal, sizeof(id.internal)));
  if (!text.starts_with(kIdPrefix) || !is_initialized(config) || num_ranks < 1 || rank < 0 || rank >= num_ranks) {
    return refuse_call(ncclInvalidArgument, "ncclCommInitRankConfig: rank " + std::to_string(rank) + " of " +
                                                std::to_string(num_ranks) +
                                                ", an id that is none, or a config without NCCL_CONFIG_INITIALIZER");
  }
  const auto comm = make_comm(text.substr(std::strlen(kIdPrefix)), rank, num_ranks, config_or_default(config));
  add_comm(comm);
  *out = comm.get();
  return proceed(comm, [comm] { return join(*comm); });
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* out, ncclConfig_t* config) {
  const Entry entry(handle, "ncclCommSplit");
  if (entry.result() != ncclSuccess) {
    return entry.result();
  }
  const std::shared_ptr<ncclComm>& parent = entry.comm();
  if (!is_initialized(config)) {
    return refuse_call(ncclInvalidArgument, "ncclCommSplit: a config without NCCL_CONFIG_INITIALIZER");
  }
  if (parent->num_finished.load() < parent->num_enqueued) {
    return refuse_call(ncclInvalidUsage, describe(*parent) + " is split while its operations are under way");
  }
  *out = nullptr;
  ++parent->num_splits;
  return proceed(parent, [parent, color, key, out, chosen = config_or_default(config)] {
    return split(*parent, color, key, out, chosen);
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  const Entry entry(handle, "ncclCommFinalize");
  if (entry.result() != ncclSuccess) {
    return entry.result();
  }
  return proceed(entry.comm(), [comm = entry.comm()] { return finalize(*comm); });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  const Entry entry(handle, "ncclCommDestroy");
  if (entry.result() != ncclSuccess) {
    return entry.result();
  }
  const std::shared_ptr<ncclComm>& comm = entry.comm();
  const ncclResult_t result = comm->finalized ? ncclSuccess : finalize(*comm);
  if (comm->background.joinable()) {
    comm->background.join();
  }
  remove_comm(*comm);
  return result;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const std::shared_ptr<ncclComm> comm = find_comm(handle);
  if (comm == nullptr) {
    return refuse_call(ncclInvalidArgument, "ncclCommAbort: no such communicator; it was destroyed or aborted");
  }
  if (!comm->is_free_for_this_thread()) {
    return refuse_call(ncclInvalidUsage,
                       "ncclCommAbort: " + describe(*comm) + " is in a call or a group of another thread");
  }
  comm->aborted = true;
  if (ncclComm* const child = comm->child.load()) {
    child->aborted = true;
  }
  if (comm->background.joinable()) {
    comm->background.join();
  }
  comm->cell(comm->rank).aborted.store(1);
  comm->region->changed();
  remove_comm(*comm);
  return ncclSuccess;
}

}  // extern "C"
