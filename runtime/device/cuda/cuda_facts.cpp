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

// The first call that uses the GPU: it fails where another process holds an exclusive GPU, or a GPU needs a reset.
void gather_free_memory(RankFacts& facts) {
  size_t free = 0;
  size_t total = 0;
  cudaError_t status = cudaSetDevice(facts.device_index);
  if (status == cudaSuccess) {
    status = cudaMemGetInfo(&free, &total);
  }
  if (status == cudaSuccess) {
    facts.free_bytes = static_cast<int64_t>(free);
  } else {
    facts.failure = fmt::format("{} ({})", cudaGetErrorName(status), cudaGetErrorString(status));
    cudaGetLastError();
  }
}

}  // namespace

void gather_cuda_facts(RankFacts& facts, const RankPlace& place, const DeviceJob& job) {
  check_cuda(cudaRuntimeGetVersion(&facts.runtime_version), "cudaRuntimeGetVersion", 0);
  check_cuda(cudaDriverGetVersion(&facts.driver_version), "cudaDriverGetVersion", 0);
  facts.num_visible = num_cuda_devices();
  facts.device_index = choose_cuda_device(place, facts.num_visible, !job.nccl);
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
  // An instance's name says so, as in "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
  facts.is_mig =
      facts.name.find(" MIG ") != std::string::npos || facts.visible_devices.find("MIG-") != std::string::npos;
  int mode = cudaComputeModeDefault;
  check_cuda(cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, facts.device_index), "cudaDeviceGetAttribute",
             facts.device_index);
  facts.is_prohibited = mode == cudaComputeModeProhibited;
  facts.is_exclusive = mode == cudaComputeModeExclusiveProcess;
  for (int peer = 0; peer < facts.num_visible; ++peer) {
    int reached = 1;
    if (peer != facts.device_index) {
      check_cuda(cudaDeviceCanAccessPeer(&reached, facts.device_index, peer), "cudaDeviceCanAccessPeer",
                 facts.device_index);
    }
    if (reached == 0) {
      facts.no_peer_access.push_back(peer);
    }
  }
  gather_free_memory(facts);
}

}  // namespace ashlar
