#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "runtime/device/cuda/cuda_check.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/facts.h"

namespace ashlar {
namespace {

// As nvidia-smi prints it: GPU-8-4-4-4-12 hexadecimal digits.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    const bool starts_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text += fmt::format("{}{:02x}", starts_group ? "-" : "", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

// As the kernel writes it in /sys: lower case. CUDA prints upper case.
std::string pci_text(int device_index) {
  char text[32] = {};
  check_cuda(cudaDeviceGetPCIBusId(text, sizeof(text), device_index), "cudaDeviceGetPCIBusId", device_index);
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return lower;
}

}  // namespace

void gather_cuda_facts(RankFacts& facts, const RankPlace& place) {
  check_cuda(cudaRuntimeGetVersion(&facts.runtime_version), "cudaRuntimeGetVersion", 0);
  check_cuda(cudaDriverGetVersion(&facts.driver_version), "cudaDriverGetVersion", 0);
  facts.num_visible = num_cuda_devices();
  facts.device_index = choose_cuda_device(place, facts.num_visible);
  if (facts.device_index < 0) {
    return;
  }
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, facts.device_index), "cudaGetDeviceProperties", facts.device_index);
  facts.name = properties.name;
  facts.uuid = uuid_text(properties.uuid);
  facts.pci_id = pci_text(facts.device_index);
  facts.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  facts.compute_major = properties.major;
  facts.compute_minor = properties.minor;
  facts.local_cpus = read_local_cpus(facts.pci_id);
}

}  // namespace ashlar
