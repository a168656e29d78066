#include "parallel/schedule/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "runtime/base/error.h"
#include "tests/parallel/schedule/text_schedule.h"

namespace ashlar {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string written(const Schedule& schedule, CsvForm form) {
  std::ostringstream out;
  write_csv(out, schedule, form);
  return out.str();
}

Schedule read(const std::string& text, CsvForm form) {
  std::istringstream in(text);
  return read_csv(in, form, "plan.csv");
}

TEST(Csv, BothForms) {
  const Schedule lowered = lower(make_one_f_one_b(2, 1));
  EXPECT_EQ(written(lowered, CsvForm::kComputeOnly), "0F0,0B0\n1F0,1B0\n");
  EXPECT_EQ(written(lowered, CsvForm::kComputeComms),
            "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n");
}

TEST(Csv, RoundTrip) {
  for (const std::string& name : schedule_names()) {
    for (int p : {1, 2, 5}) {
      for (int m : {1, 4, 7}) {
        const Schedule schedule = make_schedule(name, p, m);
        const Schedule lowered = lower(schedule);
        for (const auto& [original, form] :
             {std::pair(schedule, CsvForm::kComputeOnly), std::pair(lowered, CsvForm::kComputeComms),
              std::pair(lower(schedule, {.grad_reduce = GradReduce::kMicroBatch, .shard_windows = true}),
                        CsvForm::kComputeComms)}) {
          const Schedule back = read(written(original, form), form);
          EXPECT_EQ(back.actions, original.actions);
          EXPECT_EQ(back.stage_to_rank, original.stage_to_rank);
          EXPECT_EQ(back.num_microbatches, original.num_microbatches);
        }
      }
    }
  }
}

TEST(Csv, SpacesIdleSlotsAndLineEnds) {
  const Schedule schedule = read(" 0F0 , ,0B0,\r\n, 1F0,1B0\n\n", CsvForm::kComputeOnly);
  EXPECT_THAT(schedule.actions, ElementsAre(parse_list("0F0 0B0"), parse_list("1F0 1B0")));
  EXPECT_THAT(schedule.stage_to_rank, ElementsAre(0, 1));
  EXPECT_THAT(validate(schedule), ElementsAre());
}

void expect_error(const std::string& text, CsvForm form, const std::string& message) {
  try {
    read(text, form);
    ADD_FAILURE() << "accepted " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(Csv, ErrorsNameRowAndColumn) {
  expect_error("0F0\n1F0,1X0\n", CsvForm::kComputeOnly, "plan.csv row 2 column 2: schedule action '1X0'");
  expect_error("0F0,0SEND_F0\n1F0\n", CsvForm::kComputeOnly, "plan.csv row 1 column 2: '0SEND_F0'");
  expect_error("0F0,,0B0\n", CsvForm::kComputeComms, "plan.csv row 1 column 2: empty cell");
  expect_error("0F0,(0F1;1B0)OVERLAP_F_B\n", CsvForm::kComputeOnly, "plan.csv row 1 column 2");
  expect_error("0F0\n0F1\n", CsvForm::kComputeOnly, "row 2: 0F1 runs stage 0, which row 1 runs too");
  expect_error("0F0,0B0\n2F0,2B0\n", CsvForm::kComputeOnly, "no row runs stage 1, but stage 2 exists");
  expect_error("0F0,2147483647F0\n", CsvForm::kComputeOnly, "row 1: 2147483647F0 in a file of 2 actions");
  expect_error("0F0,0F2147483647\n", CsvForm::kComputeOnly, "row 1: 0F2147483647 in a file of 2 actions");
  expect_error("", CsvForm::kComputeOnly, "plan.csv: no actions");
  expect_error("\n,,\n", CsvForm::kComputeOnly, "plan.csv: no actions");
}

TEST(Csv, ARankWithoutStagesIsInvalid) {
  EXPECT_THAT(validate(read("0F0,0B0\n\n1F0,1B0\n", CsvForm::kComputeOnly)), ElementsAre("rank 1 has no stage"));
}

}  // namespace
}  // namespace ashlar
