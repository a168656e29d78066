#include "runtime/device/cuda/facts.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::string host_name() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::map<std::string, std::string> gpu_environment() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    for (const std::string_view prefix : {"CUDA_", "NCCL_", "OMP_", "UCX_"}) {
      const size_t equals = text.find('=');
      if (text.starts_with(prefix) && equals != std::string_view::npos) {
        found[std::string(text.substr(0, equals))] = text.substr(equals + 1);
      }
    }
  }
  return found;
}

int parse_cpu(std::string_view digits, std::string_view list) {
  int cpu = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), cpu);
  REQUIRE(error == std::errc() && end == digits.data() + digits.size() && cpu >= 0, ErrorCode::kInternal,
          "'{}' is no list of cores", list);
  return cpu;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view range = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), range.size() + 1));
    const size_t dash = range.find('-');
    const int first = parse_cpu(range.substr(0, dash), text);
    const int last = dash == std::string_view::npos ? first : parse_cpu(range.substr(dash + 1), text);
    for (int cpu = first; cpu <= last; ++cpu) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

std::vector<int> read_local_cpus(const std::string& pci_id, const std::string& sysfs) {
  return parse_cpu_list(first_line(fmt::format("{}/bus/pci/devices/{}/local_cpulist", sysfs, pci_id)));
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string text;
  for (size_t first = 0; first < cpus.size();) {
    size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) {
      ++last;
    }
    text += text.empty() ? "" : ",";
    text += first == last ? fmt::format("{}", cpus[first]) : fmt::format("{}-{}", cpus[first], cpus[last]);
    first = last + 1;
  }
  return text;
}

int choose_cuda_device(const RankPlace& place, int num_visible, bool share) {
  if (place.host_rank < num_visible && place.num_host_ranks <= num_visible) {
    return place.host_rank;
  }
  if (share && num_visible > 0) {
    return place.host_rank % num_visible;
  }
  return num_visible == 1 ? 0 : -1;
}

RankFacts gather_rank_facts(const RankPlace& place, std::vector<std::string> built_for, const DeviceJob& job) {
  RankFacts facts;
  facts.world_rank = place.world_rank;
  facts.host_rank = place.host_rank;
  facts.host = host_name();
  facts.host_id = first_line("/proc/sys/kernel/random/boot_id");
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  facts.visible_devices = visible == nullptr ? "unset" : fmt::format("'{}'", visible);
  facts.environment = gpu_environment();
  facts.built_for = std::move(built_for);
  gather_host_facts(facts);
  gather_cuda_facts(facts, place, job);
  return facts;
}

}  // namespace ashlar
