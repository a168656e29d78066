// Device and pinned memory: who has touched which bytes last, and the calls on both.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/emulation/standins/cudart/state.h"

namespace ashlar::standin {
namespace {

bool happens_before(const Operation& first, const Operation& then) {
  const auto stream = static_cast<size_t>(first.stream_id);
  return stream < then.clock.size() && then.clock[stream] >= first.number;
}

bool seen_by_host(const Operation& operation) {
  const Clock& host = state().host_clocks[static_cast<size_t>(operation.device)];
  const auto stream = static_cast<size_t>(operation.stream_id);
  return stream < host.size() && host[stream] >= operation.number;
}

// The allocation of a map whose bytes begin at or before the address, or null.
Allocation* below(std::map<uintptr_t, Allocation>& allocations, const void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) {
    return nullptr;
  }
  Allocation& allocation = (--found)->second;
  return address < found->first + allocation.bytes ? &allocation : nullptr;
}

std::map<size_t, Cell>::iterator split_at(std::map<size_t, Cell>& cells, size_t offset) {
  const auto found = cells.lower_bound(offset);
  if (found != cells.end() && found->first == offset) {
    return found;
  }
  return cells.emplace_hint(found, offset, std::prev(found)->second);
}

void check_pair(const Operation& last, const char* did, const Operation& now, const char* does, const Place& place) {
  if (state().config.check_order && !happens_before(last, now)) {
    poison(now.device, "missing wait: " + now.text + " " + does + " " + place.text + ", which " + last.text + " " +
                           did + " last; no event and no wait of the host is between them");
  }
}

// A mapping with a page that nobody may touch on both sides, filled so that unwritten memory shows as NaN.
void map_memory(Allocation& allocation) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t inner = (allocation.bytes + page - 1) / page * page;
  allocation.mapping_bytes = inner + 2 * page;
  void* mapping =
      mmap(nullptr, allocation.mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED || mprotect(static_cast<char*>(mapping) + page, inner, PROT_READ | PROT_WRITE) != 0) {
    std::abort();  // the machine that runs the test is out of memory, not the one that is played
  }
  allocation.mapping = static_cast<std::byte*>(mapping);
  allocation.data = allocation.mapping + page;
  std::memset(allocation.data, 0xff, allocation.bytes);
}

// Afterwards a touch of the memory ends the program, and its addresses are not given out again.
void retire(Allocation& allocation) {
  if (allocation.mapping != nullptr) {
    madvise(allocation.mapping, allocation.mapping_bytes, MADV_DONTNEED);
    mprotect(allocation.mapping, allocation.mapping_bytes, PROT_NONE);
  } else {
    state().config.release(allocation.data);
  }
}

// Device -1: pinned.
cudaError_t allocate(void** data, size_t bytes, int device) {
  State& s = state();
  cudaError_t status;
  if (!has_driver(&status)) {
    return finish(status);
  }
  const bool pinned = device < 0;
  size_t& used = pinned ? s.pinned_bytes : s.used_bytes[static_cast<size_t>(device)];
  const size_t limit = pinned ? s.config.pinned_bytes : s.config.devices[static_cast<size_t>(device)].memory_bytes;
  if (bytes > limit - used) {
    *data = nullptr;
    return finish(current_device(), cudaErrorMemoryAllocation);
  }
  Allocation allocation;
  allocation.text = (pinned ? "pinned buffer #" : "device buffer #") + std::to_string(++s.num_buffers);
  allocation.bytes = bytes;
  allocation.device = device;
  allocation.cells[0] = {};
  if (!pinned && s.config.allocate != nullptr) {
    allocation.data = static_cast<std::byte*>(s.config.allocate(bytes));
  } else {
    map_memory(allocation);
  }
  used += bytes;
  *data = allocation.data;
  s.freed.erase(reinterpret_cast<uintptr_t>(allocation.data));  // an allocator of another's may use addresses again
  s.allocations[reinterpret_cast<uintptr_t>(allocation.data)] = std::move(allocation);
  return finish(current_device(), cudaSuccess);
}

// A real device stands still at a free too, so a program that frees too early may get away with it there. Other devices
// go on: theirs may wait for this one's next operation.
void wait_for_all_streams(Lock& lock, int device) {
  std::vector<StreamRef> streams;
  for (const auto& [handle, stream] : state().streams) {
    if (stream->device == device) {
      streams.push_back(stream);
    }
  }
  for (const StreamRef& stream : streams) {
    wait_until(lock, stream, stream->submitted);
  }
}

cudaError_t free_memory(void* data, bool pinned, const char* call) {
  State& s = state();
  Lock lock(s.mutex);
  const auto is_it = [&] {
    const auto found = s.allocations.find(reinterpret_cast<uintptr_t>(data));
    return found != s.allocations.end() && (found->second.device < 0) == pinned;
  };
  if (!is_it()) {
    return refuse(cudaErrorInvalidValue,
                  std::string(call) + ": " + locate(data, 1).text + " is no start of such a buffer");
  }
  const int device = pinned ? current_device() : s.allocations.at(reinterpret_cast<uintptr_t>(data)).device;
  wait_for_all_streams(lock, device);
  Allocation allocation = std::move(s.allocations.at(reinterpret_cast<uintptr_t>(data)));
  s.allocations.erase(reinterpret_cast<uintptr_t>(data));
  for (const auto& [offset, cell] : allocation.cells) {
    std::vector<OperationRef> users = cell.readers;
    users.insert(users.end(), cell.writer == nullptr ? 0 : 1, cell.writer);
    const auto early =
        std::find_if(users.begin(), users.end(), [](const OperationRef& user) { return !seen_by_host(*user); });
    if (early != users.end() && s.config.check_order) {
      poison((*early)->device, std::string(call) + ": " + allocation.text +
                                   " is freed although the host has not waited for " + (*early)->text +
                                   ", which uses it");
      break;
    }
  }
  (pinned ? s.pinned_bytes : s.used_bytes[static_cast<size_t>(allocation.device)]) -= allocation.bytes;
  retire(allocation);
  s.freed[reinterpret_cast<uintptr_t>(data)] = std::move(allocation);
  return finish(device, cudaSuccess);
}

}  // namespace

void release(Allocation& allocation) {
  if (allocation.mapping != nullptr) {
    munmap(allocation.mapping, allocation.mapping_bytes);
  } else if (!state().freed.contains(reinterpret_cast<uintptr_t>(allocation.data))) {
    state().config.release(allocation.data);
  }
}

Place locate(const void* memory, size_t bytes) {
  State& s = state();
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (Allocation* found = below(s.allocations, memory)) {
    const size_t offset = address - reinterpret_cast<uintptr_t>(found->data);
    const std::string text = found->text + " at byte " + std::to_string(offset);
    if (offset + bytes <= found->bytes) {
      return {found, text};
    }
    return {nullptr, text + ", " + std::to_string(offset + bytes - found->bytes) + " bytes beyond its end"};
  }
  if (const Allocation* found = below(s.freed, memory)) {
    return {nullptr, found->text + ", which was freed"};
  }
  return {nullptr, "memory that is neither on a device nor pinned"};
}

void touch_cells(Allocation& allocation, size_t begin, size_t end, Access access) {
  const OperationRef& now = running_operation();
  std::map<size_t, Cell>& cells = allocation.cells;
  const auto first = split_at(cells, begin);
  const auto last = end < allocation.bytes ? split_at(cells, end) : cells.end();
  for (auto cell = first; cell != last; ++cell) {
    const Place place{&allocation, allocation.text + " at byte " + std::to_string(cell->first)};
    const char* const does = access == Access::kWrite ? "writes" : "reads";
    if (cell->second.writer != nullptr) {
      check_pair(*cell->second.writer, "wrote", *now, does, place);
    }
    if (access == Access::kRead) {
      std::erase_if(cell->second.readers,
                    [&](const OperationRef& reader) { return reader->stream_id == now->stream_id; });
      cell->second.readers.push_back(now);
      continue;
    }
    for (const OperationRef& reader : cell->second.readers) {
      check_pair(*reader, "read", *now, does, place);
    }
  }
  if (access == Access::kWrite) {
    first->second = {now, {}};
    cells.erase(std::next(first), last);
  }
}

bool touch(const void* memory, size_t bytes, Access access) {
  if (bytes == 0) {
    return true;
  }
  const Lock lock(state().mutex);
  const Place place = locate(memory, bytes);
  if (place.allocation == nullptr) {
    poison(running_operation()->device,
           running_operation()->text + (access == Access::kWrite ? " writes " : " reads ") + place.text);
    return false;
  }
  const size_t begin = static_cast<size_t>(static_cast<const std::byte*>(memory) - place.allocation->data);
  touch_cells(*place.allocation, begin, begin + bytes, access);
  return true;
}

}  // namespace ashlar::standin

using namespace ashlar::standin;

namespace {

bool kind_fits(cudaMemcpyKind kind, bool to_device, bool from_device) {
  switch (kind) {
    case cudaMemcpyDefault:
      return true;
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
  }
  return false;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  const Lock lock(state().mutex);
  return allocate(data, bytes, current_device());
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  const Lock lock(state().mutex);
  return allocate(data, bytes, -1);
}

cudaError_t cudaFree(void* data) {
  return free_memory(data, false, "cudaFree");
}

cudaError_t cudaFreeHost(void* data) {
  return free_memory(data, true, "cudaFreeHost");
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
  const Lock lock(state().mutex);
  const std::string name = "cudaMemcpyAsync of " + std::to_string(bytes) + " bytes";
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) {
    return refuse(cudaErrorInvalidResourceHandle, name + ": no such stream (the default stream is none)");
  }
  const Place target = locate(to, bytes);
  const Place source = locate(from, bytes);
  // The real one takes pageable memory, and then makes the host wait: no program here may rely on that.
  for (const Place* place : {&target, &source}) {
    if (place->allocation == nullptr) {
      return refuse(cudaErrorInvalidValue, name + (place == &target ? " to " : " from ") + place->text);
    }
  }
  if (!kind_fits(kind, target.allocation->device >= 0, source.allocation->device >= 0)) {
    return refuse(cudaErrorInvalidValue, name + ": the kind does not fit " + source.text + " to " + target.text);
  }
  if (const cudaError_t standing = finish(stream->device, cudaSuccess); standing != cudaSuccess) {
    return standing;
  }
  submit(*stream, name, [=] {
    if (touch(from, bytes, Access::kRead) && touch(to, bytes, Access::kWrite)) {
      const Lock data_lock(state().data);
      std::memmove(to, from, bytes);
    }
  });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t handle) {
  const std::string name = "cudaMemsetAsync of " + std::to_string(bytes) + " bytes";
  {
    const Lock lock(state().mutex);
    const Place place = locate(data, bytes);
    if (place.allocation == nullptr || place.allocation->device < 0) {
      return refuse(cudaErrorInvalidValue, name + " of " + place.text + ", not of a device");
    }
  }
  const bool queued = enqueue(handle, name, [=] {
    if (touch(data, bytes, Access::kWrite)) {
      const Lock data_lock(state().data);
      std::memset(data, value, bytes);
    }
  });
  return queued ? cudaSuccess : cudaPeekAtLastError();
}

}  // extern "C"
