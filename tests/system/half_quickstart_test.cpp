// The quick start's model in bf16 and fp16: its validation loss must be that of fp32 within 1 %. A short training as
// one test, the whole one as another.
#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

class HalfQuickStart : public SystemTest {
 protected:
  // scripts/quickstart.sh's corpus and settings, on one rank.
  void compare(int64_t steps) {
    const std::string text = path("bible.txt");
    const std::string print = "PATH=$PATH:/usr/games bible -f -l 999 gen1:1-rev22:21 >" + text;
    if (run_command(program("/bin/sh", {"-c", print})).exit_code != 0) {
      GTEST_SKIP() << "the program bible, whose text the quick start trains on, is not installed";
    }
    expect_success(run_command(program(PREPROCESS_DATA, {"--input", text, "--output-prefix", path("bible"),
                                                         "--tokenizer-type", "ByteTokenizer", "--append-eod"})));
    const Flags flags(
        "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 64 --micro-batch-size 4 "
        "--global-batch-size 32 --lr 4e-3 --min-lr 4e-4 --lr-decay-style cosine --lr-warmup-iters 20 "
        "--weight-decay 0.1 --adam-beta2 0.95 --split 969,30,1 --tokenizer-type ByteTokenizer "
        "--eval-interval 400 --eval-iters 20 --data-path " +
        path("bible_text_document") + " --train-iters " + std::to_string(steps));
    std::map<std::string, double> losses;
    const std::map<std::string, std::string> precisions = {
        {"fp32", ""}, {"bf16", "--bf16"}, {"fp16", "--fp16 --initial-scale-power 16"}};
    for (const auto& [precision, words] : precisions) {
      Command command = pretrain_command(1, flags.with(words));
      command.timeout_seconds = 1500;
      const Ended ended = run_command(command);
      expect_success(ended);
      losses[precision] = validation_loss(ended);
    }
    std::cout << "validation loss after " << steps << " steps: " << losses["fp32"] << " in fp32, " << losses["bf16"]
              << " in bf16, " << losses["fp16"] << " in fp16\n";
    EXPECT_GT(losses["fp32"], 1.0);
    EXPECT_NEAR(losses["bf16"] / losses["fp32"], 1.0, 0.01);
    EXPECT_NEAR(losses["fp16"] / losses["fp32"], 1.0, 0.01);
  }
};

// Seen: 2.336 in fp32, 2.332 in bf16, 2.336 in fp16.
TEST_F(HalfQuickStart, ShortTraining) {
  compare(100);
}
// Seen: 1.761 in fp32 and 1.758 in bf16.
TEST_F(HalfQuickStart, WholeTraining) {
  compare(400);
}

}  // namespace
}  // namespace ashlar::system_test
