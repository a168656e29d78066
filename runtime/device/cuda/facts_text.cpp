// Facts as text, so that they can travel. Written for this program alone: all ranks run the same one, or are told.
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/device/cuda/facts.h"

namespace ashlar {
namespace {

using Json = nlohmann::json;

// Reading and writing visit the members in one place, so that none can be forgotten in one of the two.
template <typename Facts, typename Visit>
void visit_members(Facts& f, Visit&& visit) {
  visit("world_rank", f.world_rank);
  visit("host_rank", f.host_rank);
  visit("host", f.host);
  visit("host_id", f.host_id);
  visit("runtime_version", f.runtime_version);
  visit("driver_version", f.driver_version);
  visit("num_visible", f.num_visible);
  visit("visible_devices", f.visible_devices);
  visit("environment", f.environment);
  visit("built_for", f.built_for);
  visit("device_index", f.device_index);
  visit("name", f.name);
  visit("uuid", f.uuid);
  visit("pci_id", f.pci_id);
  visit("memory_bytes", f.memory_bytes);
  visit("compute_major", f.compute_major);
  visit("compute_minor", f.compute_minor);
  visit("local_cpus", f.local_cpus);
  visit("is_mig", f.is_mig);
  visit("is_prohibited", f.is_prohibited);
  visit("is_exclusive", f.is_exclusive);
  visit("failure", f.failure);
  visit("free_bytes", f.free_bytes);
  visit("needed_bytes", f.needed_bytes);
  visit("no_peer_access", f.no_peer_access);
  visit("nccl_header", f.nccl_header);
  visit("nccl_library", f.nccl_library);
  visit("nccl_failure", f.nccl_failure);
  visit("build", f.build);
  visit("cpus", f.cpus);
  visit("locked_bytes", f.locked_bytes);
  visit("open_files", f.open_files);
  visit("unlimited_stack", f.unlimited_stack);
  visit("has_infiniband", f.has_infiniband);
  visit("shared_bytes", f.shared_bytes);
  visit("interfaces", f.interfaces);
}

}  // namespace

std::string to_text(const RankFacts& facts) {
  Json json = Json::object();
  visit_members(facts, [&](const char* name, const auto& member) { json[name] = member; });
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);  // variables may hold any bytes
}

RankFacts rank_facts_of(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    RankFacts facts;
    visit_members(facts, [&](const char* name, auto& member) { json.at(name).get_to(member); });
    return facts;
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::kUsage,
                fmt::format("a rank tells of its GPU in words that this program does not know ({}): all hosts need the "
                            "same build of it",
                            error.what()));
  }
}

}  // namespace ashlar
