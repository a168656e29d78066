// The report at the end of a run: whose memory it tells, and that it does not hide what was not planned.
#include "parallel/train/memory_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parallel/train/offload_support.h"

namespace ashlar {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

void with_training(const TrainOptions& given, const GridShape& grid, const std::function<void(Training&)>& body) {
  const TrainOptions options = with_grid(given, grid);
  run_ranks(grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, options);
    train_step(training, TinySource(options.seq_length, options.vocab_size));
    body(training);
  });
}

TEST(MemoryReport, IsOfTheFullestRankAndTheSameOnAll) {
  TrainOptions options = model_xs();
  options.decoder_first_pipeline_num_layers = 1;  // and three on the other stage
  with_training(options, {1, 2, 1}, [](Training& training) {
    const MemoryReport report = gather_memory_report(training);
    EXPECT_EQ(report.stage, 1);
    EXPECT_EQ(report.world_rank, 1);
    EXPECT_EQ(report.planned.total(), report.device.total.peak);
    EXPECT_EQ(report.planned.host_total(), report.host.total.peak);
    EXPECT_THAT(memory_report_text(report), AllOf(HasSubstr("rank 1 (stage 1)"), HasSubstr("equal"),
                                                  Not(HasSubstr("%")), Not(HasSubstr("not planned"))));
  });
}

TEST(MemoryReport, TellsOfHostMemoryAndFilesOfOffloadedState) {
  const ScratchDir scratch;
  with_training(with_weights_in_files(model_xs(), scratch), {1, 1, 2}, [](Training& training) {
    const MemoryReport report = gather_memory_report(training);
    EXPECT_EQ(report.planned.of(MemoryItem::kOptimizer), 0);
    EXPECT_GT(report.planned.host_of(MemoryItem::kOptimizer), 0);
    EXPECT_GT(report.disk_bytes, 0);
    EXPECT_EQ(report.planned.disk_bytes, report.disk_bytes);
    EXPECT_THAT(memory_report_text(report), AllOf(HasSubstr("host: optimizer state"), HasSubstr("on disk"),
                                                  Not(HasSubstr("%")), Not(HasSubstr("not planned"))));
    EXPECT_EQ(memory_metrics(report, 1).disk_bytes, report.disk_bytes);
    EXPECT_EQ(memory_metrics(report, 1).planned_disk_bytes, report.disk_bytes);
  });
}

TEST(MemoryReport, TellsWhatWasNotPlanned) {
  with_training(model_xs(), {1, 1, 2}, [](Training& training) {
    if (training.rank.world.rank() == 1) {  // once, long given back
      const Buffer extra = training.rank.device.allocate(100000, "a test");
    }
    const MemoryReport report = gather_memory_report(training);
    EXPECT_EQ(report.world_rank, 1);
    EXPECT_EQ(report.device.total.peak, report.planned.total() + 100000);
    EXPECT_EQ(report.device.of(MemoryItem::kOther).peak, 100000);
    EXPECT_THAT(memory_report_text(report), AllOf(HasSubstr("other "), HasSubstr("not planned"), HasSubstr(" %")));
    const MemoryMetrics metrics = memory_metrics(report, 5);
    EXPECT_EQ(metrics.step, 5);
    EXPECT_EQ(metrics.peak_bytes - metrics.planned_bytes, 100000);
    int64_t planned = 0;
    for (const MemoryMetrics::Item& item : metrics.items) {
      planned += item.on_host ? 0 : item.planned_bytes;
    }
    EXPECT_EQ(planned, metrics.planned_bytes);
  });
}

}  // namespace
}  // namespace ashlar
