// Keeps what was found. Many accesses of one loop usually fail alike, so a place and kind is reported once.
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>

#include "tests/emulation/emu/machine.h"

namespace ashlar::emu {
namespace {

constexpr size_t kMaxReports = 8;

struct Found {
  std::mutex mutex;
  std::vector<Report> reports;
  std::set<std::tuple<Fault, const void*, const void*, int>> places;
};

Found& found() {
  static Found instance;
  return instance;
}

// File and line of an instruction, and those of the functions that it was inlined into: "pack.cuh:24 in reduce.cu:28".
std::string source_lines(const void* pc) {
  const auto address = reinterpret_cast<uintptr_t>(pc) - 1;  // pc is a return address: the call lies before it
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(address), &info) == 0) {
    return "unknown place";
  }
  const uintptr_t offset = address - reinterpret_cast<uintptr_t>(info.dli_fbase);
  const std::string command = fmt::format("addr2line -s -i -e '{}' {:#x} 2>/dev/null", info.dli_fname, offset);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::array<char, 600> line{};
  std::string text;
  while (pipe && std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
    const std::string frame = line.data();
    text += (text.empty() ? "" : " in ") + frame.substr(0, frame.find_first_of(" \n"));
  }
  return text.empty() ? fmt::format("{} + {:#x}", info.dli_fname, offset) : text;
}

}  // namespace

const char* fault_name(Fault fault) {
  constexpr std::array kNames = {"launch",      "shared bounds", "uninitialised shared memory",
                                 "shared race", "cp.async",      "global bounds",
                                 "global race", "misaligned",    "array index",
                                 "divergence",  "deadlock",      "hang"};
  return kNames[static_cast<size_t>(fault)];
}

void add_report(Fault fault, const Place& place, const std::string& text) {
  Found& all = found();
  const std::lock_guard lock(all.mutex);
  if (all.reports.size() >= kMaxReports ||
      !all.places.insert({fault, place.pc, place.site.file, place.site.line}).second) {
    return;
  }
  std::string full = fmt::format("{}: {}", fault_name(fault), text);
  if (machine != nullptr) {
    full += machine->thread_text();
  }
  if (place.site.file != nullptr) {
    full += fmt::format(" at {}:{}", place.site.file, place.site.line);
  }
  all.reports.push_back({fault, std::move(full), place.site.file == nullptr ? place.pc : nullptr});
}

std::vector<Report> take_reports() {
  Found& all = found();
  const std::lock_guard lock(all.mutex);
  all.places.clear();
  return std::exchange(all.reports, {});
}

std::string describe(const Report& report) {
  return report.pc == nullptr ? report.text : report.text + " at " + source_lines(report.pc);
}

std::string Machine::thread_text() const {
  if (current_lane == nullptr) {
    return fmt::format(" [{}]", kernel_name);
  }
  const uint3 b = current_lane->block;
  return fmt::format(" [{} block ({},{},{}) thread {}]", kernel_name, b.x, b.y, b.z, current_lane->linear);
}

}  // namespace ashlar::emu
