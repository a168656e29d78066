// Whole jobs in fp16: what a user sees of the loss scale, on the console, in the metrics file and behind a resume.
#include <fstream>

#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

class LossScale : public SystemTest {
 protected:
  // All of each training line but times and speeds.
  std::vector<nlohmann::json> lines_of(const std::string& metrics_file) const {
    std::ifstream in(path(metrics_file));
    std::vector<nlohmann::json> lines;
    for (std::string text; std::getline(in, text);) {
      auto json = nlohmann::json::parse(text);
      if (json.at("kind") != "train") {
        continue;
      }
      for (const char* changing : {"step_time_s", "tokens_per_s", "model_tflops"}) {
        json.erase(changing);
      }
      lines.push_back(json);
    }
    return lines;
  }
  Flags fp16() const { return tiny().with("--fp16 --initial-loss-scale 4096 --hysteresis 1 --check-weight-hash"); }
};

TEST_F(LossScale, AnOverflowOnAnyRankSkipsTheStepOnAll) {
  const Flags flags = fp16().with(kGrid221);
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    const std::string metrics = "m" + std::to_string(rank) + ".jsonl";
    const Ended ended = pretrain(
        4, flags.with("--metrics-file " + metrics).with("--test-overflow rank=" + std::to_string(rank) + ",step=3"));
    expect_success(ended);
    EXPECT_EQ(count(ended.out, "loss scale: 4096.0"), 2) << ended.out;
    EXPECT_EQ(count(ended.out, "loss scale: 2048.0"), 4) << ended.out;
    EXPECT_EQ(count(ended.out, "number of skipped iterations:   1"), 1) << ended.out;
    EXPECT_EQ(count(ended.out, "number of nan iterations:   0"), 6) << ended.out;
    const std::vector<StepLine> steps = steps_of(metrics);
    ASSERT_EQ(steps.size(), 6u);
    EXPECT_EQ(steps[2].hashes, steps[1].hashes) << "the weights of step 2, on every rank";
    for (size_t holder = 0; holder < 4; ++holder) {
      EXPECT_NE(steps[3].hashes[holder], steps[2].hashes[holder]) << "rank " << holder << " goes on";
    }
    const std::vector<nlohmann::json> lines = lines_of(metrics);
    EXPECT_EQ(lines[1].at("skipped_iterations"), 0);
    EXPECT_EQ(lines[2].at("skipped_iterations"), 1);
    EXPECT_EQ(lines[5].at("skipped_iterations"), 1);
    EXPECT_EQ(lines[5].at("nan_iterations"), 0);
    EXPECT_EQ(lines[5].at("loss_scale"), 2048);
    EXPECT_EQ(lines[2].at("consumed_samples"), 24);
  }
}

// Counters of a line are those since the line before.
TEST_F(LossScale, LinesCountWhatLiesBetweenThem) {
  const Ended ended =
      pretrain(2, fp16().with(kGrid122).with("--log-interval 3 --test-overflow rank=1,step=2 --loss-scale-window 2"));
  expect_success(ended);
  EXPECT_EQ(count(ended.out, "number of skipped iterations:   0"), 2) << ended.out;  // steps 1 and 6
  EXPECT_EQ(count(ended.out, "number of skipped iterations:   1"), 1) << ended.out;  // step 3
}

TEST_F(LossScale, ResumeIsAsIfNeverStopped) {
  const Flags flags = fp16().with("--loss-scale-window 4 --initial-loss-scale 1024 --train-iters 10 --hysteresis 2");
  expect_success(pretrain(1, flags.with("--metrics-file whole.jsonl --test-overflow rank=0,step=2")));
  const std::vector<nlohmann::json> whole = lines_of("whole.jsonl");
  ASSERT_EQ(whole.size(), 10u);
  EXPECT_EQ(whole[5].at("loss_scale"), 2048);
  for (const char* stop : {"2", "3"}) {
    const std::string save = std::string("ck") + stop, metrics = std::string("m") + stop + ".jsonl";
    const Flags part = flags.with("--save " + save + " --metrics-file " + metrics + " --test-overflow rank=0,step=2");
    expect_success(pretrain(1, part.with(std::string("--exit-interval ") + stop)));
    expect_success(pretrain(1, part.with("--load " + save)));
    EXPECT_EQ(lines_of(metrics), whole) << "stopped behind step " << stop;
  }
}

TEST_F(LossScale, EndsWithAdviceWhenItCannotFall) {
  const Flags flags = fp16().without("initial-loss-scale").without("hysteresis").with("--train-iters 20");
  expect_error(
      pretrain(2, flags.with(kGrid122).with("--initial-scale-power 64 --min-loss-scale 1.8446744073709552e19")),
      ErrorCode::kNumerics,
      {"step 10: the gradients overflowed in 10 steps in a row at loss scale 1.8446744073709552e+19, which "
       "--min-loss-scale keeps it from falling below",
       "the gradient of", "The weights are those of update 0", "Give a lower --min-loss-scale", "--bf16"});
  expect_error(pretrain(1, flags.with("--loss-scale 1e19")), ErrorCode::kNumerics,
               {"step 10: the gradients overflowed in 10 steps in a row at loss scale 1e+19, which "
                "--loss-scale keeps",
                "Leave out --loss-scale"});
}

TEST_F(LossScale, ANotFiniteLossStillEndsTheRun) {
  const Ended ended = pretrain(2, fp16().with(kGrid122).with("--test-nan rank=1,step=4"));
  expect_error(ended, ErrorCode::kNumerics,
               {"step 4: loss nan, gradient norm nan: first on rank 1", "stage 1, in the input of h.2, micro-batch 0",
                "The weights are those of step 3"});
  EXPECT_THAT(ended.out, HasSubstr("lm loss: NAN | loss scale: 4096.0"));
  EXPECT_THAT(ended.out, HasSubstr("number of nan iterations:   1"));
}

TEST_F(LossScale, OtherPrecisionsSayNothingOfIt) {
  for (const char* precision : {"", "--bf16"}) {
    const Ended ended = pretrain(1, tiny().with(precision).with("--metrics-file m.jsonl"));
    expect_success(ended);
    EXPECT_EQ(count(ended.out, "loss scale: 1.0"), 6);
    EXPECT_FALSE(lines_of("m.jsonl").front().contains("loss_scale"));
    std::remove(path("m.jsonl").c_str());
  }
}

TEST_F(LossScale, SavedModelsAreTheMasters) {
  expect_success(pretrain(2, fp16().with(kGrid122).with("--save ck --save-hf hf16")));
  // The same checkpoint as an fp32 run's weights: nothing was rounded on the way.
  expect_success(pretrain(1, tiny().with("--load ck --save-hf hf32")));
  EXPECT_EQ(snapshot("hf16").at("model.safetensors"), snapshot("hf32").at("model.safetensors"));
}

}  // namespace
}  // namespace ashlar::system_test
