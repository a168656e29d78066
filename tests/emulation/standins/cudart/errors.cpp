// The machine that the stand-in plays, its errors, and the calls that ask for them.
#include <cstdio>
#include <cstring>
#include <utility>

#include "tests/emulation/standins/cudart/state.h"

namespace ashlar::standin {
namespace {

thread_local int thread_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local std::string last_refusal;  // the text behind last_error, when it was a refusal

}  // namespace

State& state() {
  static State* const the_state = [] {
    auto* fresh = new State;  // never deleted: workers of leaked streams may outlive every static
    const Config config;
    const size_t count = config.devices.size();
    fresh->config = config;
    fresh->sticky.assign(count, cudaSuccess);
    fresh->sticky_text.assign(count, "");
    fresh->used_bytes.assign(count, 0);
    fresh->host_clocks.assign(count, {});
    return fresh;
  }();
  return *the_state;
}

void reset(const Config& config) {
  State& s = state();
  Lock lock(s.mutex);
  while (!s.streams.empty()) {
    stop_stream(lock, s.streams.begin()->second);
  }
  for (auto* allocations : {&s.allocations, &s.freed}) {
    for (auto& [address, allocation] : *allocations) {
      release(allocation);
    }
    allocations->clear();
  }
  for (Event* event : s.events) {
    delete event;
  }
  s.events.clear();
  const size_t count = config.devices.size();
  s.config = config;
  s.sticky.assign(count, cudaSuccess);
  s.sticky_text.assign(count, "");
  s.used_bytes.assign(count, 0);
  s.host_clocks.assign(count, {});
  s.pinned_bytes = 0;
  s.num_streams = s.num_buffers = s.num_operations = 0;
  s.reports.clear();
  thread_device = 0;
  last_error = cudaSuccess;
}

std::vector<std::string> take_reports() {
  const Lock lock(state().mutex);
  return std::exchange(state().reports, {});
}

std::vector<std::string> leaks() {
  State& s = state();
  const Lock lock(s.mutex);
  std::vector<std::string> found;
  for (const auto& [handle, stream] : s.streams) {
    found.push_back("stream " + std::to_string(stream->id));
  }
  for (const auto& [address, allocation] : s.allocations) {
    found.push_back(allocation.text);
  }
  if (!s.events.empty()) {
    found.push_back(std::to_string(s.events.size()) + " events");
  }
  return found;
}

int current_device() {
  return thread_device;
}

cudaError_t finish(cudaError_t status) {
  if (status != cudaSuccess) {
    last_error = status;
    last_refusal.clear();
  }
  return status;
}

cudaError_t finish(int device, cudaError_t status) {
  const State& s = state();
  const auto index = static_cast<size_t>(device);
  return finish(index < s.sticky.size() && s.sticky[index] != cudaSuccess ? s.sticky[index] : status);
}

cudaError_t refuse(cudaError_t status, const std::string& text) {
  state().reports.push_back(text);
  finish(status);
  last_refusal = text;
  return status;
}

void poison(int device, const std::string& text) {
  State& s = state();
  s.reports.push_back(text);
  const auto index = static_cast<size_t>(device);
  if (s.sticky[index] == cudaSuccess) {
    s.sticky[index] = cudaErrorIllegalAddress;
    s.sticky_text[index] = text;
  }
}

bool has_driver(cudaError_t* status) {
  const Config& config = state().config;
  if (config.driver_version / 1000 < CUDART_VERSION / 1000) {
    *status = cudaErrorInsufficientDriver;
  } else if (config.devices.empty()) {
    *status = cudaErrorNoDevice;
  } else {
    return true;
  }
  return false;
}

}  // namespace ashlar::standin

using namespace ashlar::standin;

namespace {

bool is_device(int index) {
  return index >= 0 && static_cast<size_t>(index) < state().config.devices.size();
}

const char* keep(const std::string& text) {
  return state().error_texts.emplace_back(text).c_str();
}

}  // namespace

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  const Lock lock(state().mutex);
  *version = state().config.driver_version;
  return cudaSuccess;  // also without a driver
}

cudaError_t cudaGetDeviceCount(int* count) {
  const Lock lock(state().mutex);
  cudaError_t status;
  if (!has_driver(&status)) {
    return finish(status);  // leaves the count alone
  }
  *count = static_cast<int>(state().config.devices.size());
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  const Lock lock(state().mutex);
  cudaError_t status;
  if (!has_driver(&status)) {
    return finish(status);
  }
  if (!is_device(device)) {
    return refuse(cudaErrorInvalidDevice, "cudaSetDevice: no device " + std::to_string(device));
  }
  thread_device = device;
  return finish(device, cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  *device = thread_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const Lock lock(state().mutex);
  cudaError_t status;
  if (!has_driver(&status)) {
    return finish(status);
  }
  if (!is_device(device)) {
    return refuse(cudaErrorInvalidDevice, "cudaGetDeviceProperties: no device " + std::to_string(device));
  }
  const DeviceSpec& spec = state().config.devices[static_cast<size_t>(device)];
  *properties = {};
  std::strncpy(properties->name, spec.name.c_str(), sizeof(properties->name) - 1);
  for (size_t i = 0; i < sizeof(properties->uuid.bytes); ++i) {
    properties->uuid.bytes[i] = static_cast<char>(0xa0 + i);
  }
  properties->uuid.bytes[15] = static_cast<char>(device);
  properties->totalGlobalMem = spec.memory_bytes;
  properties->major = spec.compute_major;
  properties->minor = spec.compute_minor;
  properties->warpSize = 32;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  const Lock lock(state().mutex);
  if (!is_device(device) || length < 13) {
    return refuse(cudaErrorInvalidValue, "cudaDeviceGetPCIBusId: no such device, or no room for 13 characters");
  }
  std::snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", 0x1b + device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const Lock lock(state().mutex);
  if (!is_device(device) || attribute != cudaDevAttrComputeMode) {
    return refuse(cudaErrorInvalidValue, "cudaDeviceGetAttribute: no such device, or an attribute nobody asks for");
  }
  *value = state().config.devices[static_cast<size_t>(device)].compute_mode;
  return finish(device, cudaSuccess);
}

cudaError_t cudaDeviceCanAccessPeer(int* reached, int device, int peer) {
  const Lock lock(state().mutex);
  if (!is_device(device) || !is_device(peer) || device == peer) {
    return refuse(cudaErrorInvalidDevice, "cudaDeviceCanAccessPeer: two different devices are needed");
  }
  *reached = 1;
  return finish(device, cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const Lock lock(state().mutex);
  const auto device = static_cast<size_t>(thread_device);
  *total = state().config.devices[device].memory_bytes;
  *free = *total - state().used_bytes[device];
  return finish(thread_device, cudaSuccess);
}

cudaError_t cudaGetLastError(void) {
  const Lock lock(state().mutex);
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return finish(thread_device, cudaSuccess) == cudaSuccess ? error : last_error;
}

cudaError_t cudaPeekAtLastError(void) {
  const Lock lock(state().mutex);
  return finish(thread_device, last_error);
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchTimeout:
      return "cudaErrorLaunchTimeout";
    default:
      return "an error that the stand-in does not name";
  }
}

// Where the real one has a fixed text, this one says what the program did.
const char* cudaGetErrorString(cudaError_t error) {
  const Lock lock(state().mutex);
  const State& s = state();
  for (size_t device = 0; device < s.sticky.size(); ++device) {
    if (error != cudaSuccess && s.sticky[device] == error) {
      return keep("stand-in, device " + std::to_string(device) + ": " + s.sticky_text[device]);
    }
  }
  return keep(last_refusal.empty() ? cudaGetErrorName(error) : "stand-in: " + last_refusal);
}

}  // extern "C"
