#include "runtime/metrics/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class MetricsFileTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        std::filesystem::temp_directory_path() /
        fmt::format("ashlar_metrics_{}_{}", getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path path() const { return directory_ / "metrics.jsonl"; }

  std::vector<std::string> lines() const {
    std::ifstream in(path(), std::ios::binary);
    std::vector<std::string> result;
    for (std::string line; std::getline(in, line);) result.push_back(line);
    return result;
  }

  void put(const std::string& text) const { std::ofstream(path(), std::ios::binary) << text; }

  std::string content() const {
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  void expect_refused(const std::filesystem::path& file, const std::string& reason, int64_t resumed_step = 0) const {
    try {
      MetricsFile metrics(file, resumed_step);
      ADD_FAILURE() << "accepted " << file;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("--metrics-file " + file.string()));
      EXPECT_THAT(error.what(), HasSubstr(reason));
    }
  }

  std::filesystem::path directory_;
};

StepMetrics at_step(int64_t step) {
  StepMetrics m;
  m.step = step;
  m.flop_formula = "causal";
  return m;
}

TEST_F(MetricsFileTest, ExactLines) {
  StepMetrics m = at_step(3);
  m.loss = 0.1;
  m.grad_norm = 1.0 / 3.0;
  m.learning_rate = 1e-4;
  m.consumed_samples = 768;
  m.consumed_tokens = 3000000000;
  m.step_time_s = 0.25;
  m.tokens_per_s = 12345.5;
  m.model_tflops = 2;
  MetricsFile file(path(), 0);
  file.write(m);
  m.weight_hashes = {0x0123456789abcdef, 0xf};
  file.write(m);
  file.write(ValidationMetrics{.step = 3, .loss = 0});
  const std::string common =
      R"({"kind":"train","step":3,"loss":0.1,"grad_norm":0.3333333333333333,"learning_rate":0.0001,"consumed_samples":768,)"
      R"("consumed_tokens":3000000000,"step_time_s":0.25,"tokens_per_s":12345.5,"model_tflops":2.0,"flop_formula":"causal")";
  EXPECT_THAT(lines(), ElementsAre(common + "}", common + R"(,"weight_hash":["0123456789abcdef","000000000000000f"]})",
                                   R"({"kind":"validation","step":3,"loss":0.0,"perplexity":1.0})"));
}

TEST_F(MetricsFileTest, LossScaleOfFp16) {
  StepMetrics m;
  m.step = 7;
  m.scales_loss = true;
  m.loss_scale = 4294967296;
  m.total_skipped = 3;
  m.total_nan = 1;
  MetricsFile file(path(), 0);
  file.write(m);
  EXPECT_THAT(lines().front(),
              testing::EndsWith(R"(,"loss_scale":4294967296.0,"skipped_iterations":3,"nan_iterations":1})"));
}

TEST_F(MetricsFileTest, ExactLinesOfAStartAndOfAnEnd) {
  MetricsFile file(path(), 0);
  file.write(RunMetrics{.step = 0,
                        .device = "GPU 3",
                        .num_ranks = 4,
                        .grid = "4 x 1 x 1",
                        .num_parameters = 53440,
                        .precision = "bf16",
                        .zero_stage = 2,
                        .grad_reduce = "micro-batch"});
  file.write(MemoryMetrics{.step = 7,
                           .rank = 2,
                           .planned_bytes = 300,
                           .peak_bytes = 301,
                           .planned_disk_bytes = 40,
                           .disk_bytes = 41,
                           .items = {{"gradients", false, 200, 201}, {"micro-batches", true, 5, 6}}});
  EXPECT_THAT(lines(),
              ElementsAre(R"({"kind":"run","step":0,"device":"GPU 3","ranks":4,"grid":"4 x 1 x 1","parameters":53440,)"
                          R"("precision":"bf16","zero_stage":2,"grad_reduce":"micro-batch"})",
                          R"({"kind":"memory","step":7,"rank":2,"planned_bytes":300,"peak_bytes":301,)"
                          R"("planned_disk_bytes":40,"disk_bytes":41,"items":[)"
                          R"({"name":"gradients","on_host":false,"planned_bytes":200,"peak_bytes":201},)"
                          R"({"name":"micro-batches","on_host":true,"planned_bytes":5,"peak_bytes":6}]})"));
  // A run that goes on from step 5 writes its end anew, and keeps that it was started.
  const MetricsFile resumed(path(), 5);
  EXPECT_EQ(lines().size(), 1u);
}

TEST_F(MetricsFileTest, NumbersRoundTrip) {
  const std::vector<double> values = {0.1,
                                      1.0 / 3.0,
                                      5.541263,
                                      1e-308,
                                      4.9e-324,
                                      std::numeric_limits<double>::max(),
                                      static_cast<double>(2.3456789F),
                                      123456789.123456789,
                                      -0.0};
  MetricsFile file(path(), 0);
  for (double value : values) {
    StepMetrics m = at_step(1);
    m.loss = value;
    file.write(m);
  }
  const std::vector<std::string> written = lines();
  ASSERT_EQ(written.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(nlohmann::json::parse(written[i])["loss"].get<double>(), values[i]);
  }
}

TEST_F(MetricsFileTest, WhatJsonCannotSayIsAString) {
  MetricsFile file(path(), 0);
  StepMetrics m = at_step(1);
  m.loss = std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = std::numeric_limits<double>::infinity();
  m.learning_rate = -std::numeric_limits<double>::infinity();
  file.write(m);
  const nlohmann::json object = nlohmann::json::parse(lines().at(0));
  EXPECT_EQ(object["loss"], "nan");
  EXPECT_EQ(object["grad_norm"], "inf");
  EXPECT_EQ(object["learning_rate"], "-inf");
}

TEST_F(MetricsFileTest, EveryLineIsThereAtOnce) {
  MetricsFile file(path(), 0);
  for (int64_t step = 1; step <= 3; ++step) {
    file.write(at_step(step));
    EXPECT_EQ(lines().size(), static_cast<size_t>(step));
  }
}

TEST_F(MetricsFileTest, ResumeCutsLaterSteps) {
  {
    MetricsFile file(path(), 0);
    for (int64_t step = 1; step <= 5; ++step) {
      file.write(at_step(step));
      if (step % 2 == 0) file.write(ValidationMetrics{.step = step, .loss = 1});
    }
  }
  const std::vector<std::string> before = lines();  // steps 1 2 2v 3 4 4v 5
  {
    MetricsFile file(path(), 4);
    EXPECT_EQ(lines(), (std::vector<std::string>(before.begin(), before.begin() + 6)));
    file.write(at_step(5));
  }
  EXPECT_EQ(lines(), before);
  MetricsFile file(path(), 1);
  EXPECT_EQ(lines(), (std::vector<std::string>(before.begin(), before.begin() + 1)));
}

TEST_F(MetricsFileTest, FreshRunStartsAnew) {
  {
    MetricsFile file(path(), 0);
    file.write(at_step(1));
  }
  MetricsFile file(path(), 0);
  EXPECT_EQ(content(), "");
}

TEST_F(MetricsFileTest, TornLastLineIsDropped) {
  for (const std::string torn : {R"({"kind":"train","step":2,"lo)", R"({"k)", R"({"kind":"train","step":2})"}) {
    std::filesystem::remove(path());
    {
      MetricsFile file(path(), 0);
      file.write(at_step(1));
    }
    const std::string whole = content();
    put(whole + torn);
    MetricsFile file(path(), 2);
    EXPECT_EQ(content(), whole) << torn;
  }
}

TEST_F(MetricsFileTest, ForeignFileIsLeftAlone) {
  for (const std::string text : {"my notes\n", "my notes", "{\"a\":1}\n", "[1]\n", "\n",
                                 "{\"kind\":\"train\",\"step\":9}\nnotes\n", "{\"kind\":\"train\",\"step\":\"x\"}\n"}) {
    put(text);
    expect_refused(path(), "is not a line of metrics");
    EXPECT_EQ(content(), text);
  }
}

TEST_F(MetricsFileTest, PlacesThatCannotBeWritten) {
  expect_refused(directory_ / "missing" / "metrics.jsonl", "No such file or directory");
  expect_refused(directory_, "Is a directory");
}

TEST_F(MetricsFileTest, FullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  MetricsFile file("/dev/full", 0);
  try {
    file.write(at_step(1));
    FAIL() << "a full disk went unnoticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("--metrics-file /dev/full"));
    EXPECT_THAT(error.what(), HasSubstr("No space left"));
  }
}

}  // namespace
}  // namespace ashlar
