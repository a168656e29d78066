#include "parallel/train/memory_report.h"

#include <algorithm>
#include <array>

#include "parallel/plan/cost.h"
#include "parallel/plan/plan_text.h"
#include "parallel/train/run_shape_of.h"

namespace ashlar {
namespace {

// What a rank tells: its stage, then of device and host memory the peak of the sum and of each item, then its file.
constexpr size_t kTotal = 1;
constexpr size_t kHostTotal = kTotal + 1 + kNumMemoryItems;
constexpr size_t kNumCells = kHostTotal + 1 + kNumMemoryItems + 1;

std::string difference_text(int64_t planned, int64_t peak) {
  if (planned == peak) {
    return "equal";
  }
  if (planned == 0) {
    return "not planned";
  }
  return fmt::format("{:+.2f} %", 100.0 * static_cast<double>(peak - planned) / static_cast<double>(planned));
}

class Table {
 public:
  explicit Table(const MemoryReport& report)
      : unit_(unit_of(std::max(report.planned.total(), report.device.total.peak))),
        text_(fmt::format("memory in {}, rank {} (stage {}), the fullest\n  {:<30} {:>10} {:>10}", unit_.name,
                          report.world_rank, report.stage, "", "planned", "measured")) {}

  void add(const std::string& name, int64_t planned, int64_t peak) {
    if (unit_.shows(std::max(planned, peak))) {
      text_ += fmt::format("\n  {:<30} {:>10.3f} {:>10.3f}   {}", name, static_cast<double>(planned) / unit_.bytes,
                           static_cast<double>(peak) / unit_.bytes, difference_text(planned, peak));
    }
  }
  void add_per_parameter(const RankMemory& planned, const MemoryUses& uses, int64_t num_parameters) {
    int64_t peak = 0;
    for (const MemoryItem item : kStateItems) {
      peak += uses.of(item).peak;
    }
    const auto each = [&](int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(num_parameters); };
    text_ += fmt::format("\n  {:<30} {:>10.3f} {:>10.3f}   bytes of weights, gradients and optimizer",
                         "bytes per parameter", each(planned.state()), each(peak));
  }
  const std::string& text() const { return text_; }

 private:
  ByteUnit unit_;
  std::string text_;
};

}  // namespace

int64_t disk_bytes(const Training& training) {
  const OffloadedState* state = training.optimizer.offloaded();
  const ValueHome* values = training.store.value_home();
  return (state != nullptr ? state->disk_bytes() : 0) + (values != nullptr ? values->disk_bytes() : 0);
}

MemoryReport gather_memory_report(const Training& training) {
  RankContext& rank = training.rank;
  std::array<int64_t, kNumCells> mine{training.grid.coordinate().pipeline};
  auto cell = mine.begin() + 1;
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kHost}) {
    const MemoryUses uses = rank.device.memory_uses(kind);
    *cell++ = uses.total.peak;
    cell = std::ranges::transform(uses.items, cell, &MemoryUse::peak).out;
  }
  *cell = disk_bytes(training);
  const int num_ranks = rank.world.size();
  std::vector<std::array<int64_t, kNumCells>> all(static_cast<size_t>(num_ranks));
  constexpr auto kRowCells = static_cast<int64_t>(kNumCells);
  rank.world
      .all_gather(view_of(all.front().data(), {num_ranks, kRowCells}), view_of(mine.data(), {1, kRowCells}),
                  *training.stream)
      .wait_host();

  const RunShape shape = run_shape_of(training.options, used_device(training.options, rank.device.kind()));
  const auto fullest = std::ranges::max_element(all, {}, [&](const auto& row) {  // as RankMemory::limited()
    return row[kTotal] + (shape.device == DeviceKind::kCpu ? row[kHostTotal] : 0);
  });
  MemoryReport report;
  report.world_rank = static_cast<int>(fullest - all.begin());
  report.stage = static_cast<int>(fullest->front());
  report.num_parameters = parameters_per_rank(shape)[static_cast<size_t>(report.stage)];
  report.planned = plan_memory(shape)[static_cast<size_t>(report.stage)];
  auto from = fullest->begin() + kTotal;
  for (MemoryUses* uses : {&report.device, &report.host}) {
    uses->total.peak = *from++;
    for (MemoryUse& use : uses->items) {
      use.peak = *from++;
    }
  }
  report.disk_bytes = *from;
  return report;
}

std::string memory_report_text(const MemoryReport& report) {
  Table table(report);
  for (size_t item = 0; item < kNumMemoryItems; ++item) {
    table.add(memory_item_name(static_cast<MemoryItem>(item)), report.planned.bytes[item],
              report.device.items[item].peak);
  }
  table.add("total", report.planned.total(), report.device.total.peak);
  for (size_t item = 0; item < kNumMemoryItems; ++item) {
    table.add(fmt::format("host: {}", memory_item_name(static_cast<MemoryItem>(item))), report.planned.host_bytes[item],
              report.host.items[item].peak);
  }
  table.add("on disk", report.planned.disk_bytes, report.disk_bytes);
  table.add_per_parameter(report.planned, report.device, report.num_parameters);
  return table.text();
}

MemoryMetrics memory_metrics(const MemoryReport& report, int64_t step) {
  MemoryMetrics metrics{.step = step,
                        .rank = report.world_rank,
                        .planned_bytes = report.planned.total(),
                        .peak_bytes = report.device.total.peak,
                        .planned_disk_bytes = report.planned.disk_bytes,
                        .disk_bytes = report.disk_bytes,
                        .items = {}};
  for (const bool on_host : {false, true}) {
    const auto& planned = on_host ? report.planned.host_bytes : report.planned.bytes;
    const MemoryUses& uses = on_host ? report.host : report.device;
    for (size_t item = 0; item < kNumMemoryItems; ++item) {
      if (planned[item] != 0 || uses.items[item].peak != 0) {
        metrics.items.push_back(
            {memory_item_name(static_cast<MemoryItem>(item)), on_host, planned[item], uses.items[item].peak});
      }
    }
  }
  return metrics;
}

}  // namespace ashlar
