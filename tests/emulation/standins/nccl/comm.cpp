// Communicators as objects: the live ones of this process, their errors, and the faults that a test plants.
#include "tests/emulation/standins/nccl/comm.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "tests/emulation/standins/cudart/state.h"

namespace ashlar::standin {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<ncclComm>> live;
};

Registry& registry() {
  static Registry* const the_registry = new Registry;  // never deleted: workers of leaked streams may outlive statics
  return *the_registry;
}

thread_local std::string refusal;

NcclFaultPlan planned_fault(const char* text) {
  NcclFaultPlan plan;
  if (text == nullptr) {
    return plan;
  }
  std::istringstream words(text);
  std::string fault;
  std::string rank;
  std::string number;
  std::getline(words, fault, ',');
  std::getline(words, plan.communicator, ',');
  std::getline(words, rank, ',');
  std::getline(words, number, ',');
  if (fault == "absent") {
    plan.fault = NcclFault::kAbsent;
  } else if (fault == "async") {
    plan.fault = NcclFault::kAsyncError;
  } else if (fault == "init") {
    plan.fault = NcclFault::kInitHangs;
  } else {
    std::fprintf(stderr, "ASHLAR_STANDIN_NCCL_FAULT=%s: expected absent, async or init first\n", text);
    std::abort();
  }
  plan.rank = std::atoi(rank.c_str());
  plan.number = number.empty() ? 1 : std::strtoull(number.c_str(), nullptr, 10);
  return plan;
}

NcclConfig config_of_environment() {
  NcclConfig config;
  config.fault = planned_fault(std::getenv("ASHLAR_STANDIN_NCCL_FAULT"));
  if (const char* version = std::getenv("ASHLAR_STANDIN_NCCL_VERSION")) {
    config.version = std::atoi(version);
  }
  if (const char* seconds = std::getenv("ASHLAR_STANDIN_NCCL_TIMEOUT")) {
    config.timeout_seconds = std::atof(seconds);
  }
  return config;
}

NcclConfig& the_config() {
  static NcclConfig config = config_of_environment();
  return config;
}

}  // namespace

const NcclConfig& nccl_config() {
  return the_config();
}

void configure_nccl(const NcclConfig& config) {
  the_config() = config;
}

std::string describe(const ncclComm& comm) {
  return "communicator \"" + comm.name + "\", rank " + std::to_string(comm.rank) + " of " + std::to_string(comm.size);
}

std::shared_ptr<ncclComm> find_comm(ncclComm_t handle) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().live.find(handle);
  return found == registry().live.end() ? nullptr : found->second;
}

void add_comm(const std::shared_ptr<ncclComm>& comm) {
  const std::lock_guard lock(registry().mutex);
  registry().live[comm.get()] = comm;
}

void remove_comm(ncclComm& comm) {
  comm.over = true;
  const std::lock_guard lock(registry().mutex);
  registry().live.erase(&comm);
}

std::vector<std::string> nccl_leaks() {
  const std::lock_guard lock(registry().mutex);
  std::vector<std::string> found;
  for (const auto& [handle, comm] : registry().live) {
    found.push_back(describe(*comm));
  }
  return found;
}

void demand_peers(const ncclComm& comm) {
  std::vector<cudaStream_t> streams;
  {
    const std::lock_guard lock(registry().mutex);
    for (const auto& [handle, other] : registry().live) {
      const cudaStream_t stream = other->stream;
      if (other->region_name == comm.region_name && other.get() != &comm && stream != nullptr) {
        streams.push_back(stream);
      }
    }
  }
  for (const cudaStream_t stream : streams) {
    demand(stream);
  }
}

ncclResult_t error_of(ncclComm& comm) {
  if (comm.own_error != ncclSuccess) {
    return static_cast<ncclResult_t>(comm.own_error.load());
  }
  return static_cast<ncclResult_t>(comm.region->head().error.load());
}

std::string error_text_of(ncclComm& comm) {
  const std::lock_guard lock(comm.text_mutex);
  if (comm.own_error != ncclSuccess) {
    return comm.error_text;
  }
  return comm.region->head().error_written.load() != 0 ? comm.region->head().error_text : "no error";
}

void fail_all(ncclComm& comm, ncclResult_t error, const std::string& text) {
  if (error_of(comm) != ncclSuccess) {
    return;
  }
  if (error == ncclInvalidUsage) {  // the program's mistake; all else happens to good programs
    const Lock lock(state().mutex);
    state().reports.push_back("NCCL: " + text);
  }
  comm.region->fail(error, text);
}

ncclResult_t refuse_call(ncclResult_t error, const std::string& text) {
  const Lock lock(state().mutex);
  state().reports.push_back("NCCL: " + text);
  refusal = text;
  return error;
}

const std::string& last_refusal() {
  return refusal;
}

}  // namespace ashlar::standin
