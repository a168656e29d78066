// nanoGPT's character-level CPU configuration on tiny Shakespeare: after 2000 steps its validation loss is known to be
// about 1.88. Too low would be as wrong as too high: it would mean that the model sees its targets.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

namespace fs = std::filesystem;

class NanoGpt : public SystemTest {};

TEST_F(NanoGpt, TinyShakespeare) {
  const fs::path text_file = fs::path(SHARED_DATA) / "text/tinyshakespeare.txt";
  if (!fs::exists(text_file)) {
    GTEST_SKIP() << "no shared data";
  }
  // Characters are bytes here; the 65 in use are 65 of the byte tokenizer's ids, and the others are never a target.
  expect_success(run_command(program(PREPROCESS_DATA, {"--input", text_file.string(), "--output-prefix", "shakespeare",
                                                       "--tokenizer-type", "ByteTokenizer"})));
  Command command = pretrain_command(
      1,
      Flags("--data-path shakespeare_text_document --split 90,10,0 --num-layers 4 --hidden-size 128 "
            "--num-attention-heads 4 --seq-length 64 --micro-batch-size 12 --train-iters 2000 --lr 1e-3 --min-lr 1e-4 "
            "--lr-decay-style cosine --lr-warmup-iters 100 --adam-beta2 0.99 --weight-decay 0.1 --clip-grad 1.0 "
            "--eval-interval 250 --eval-iters 100 --log-interval 100"));
  command.timeout_seconds = 2900;
  const Ended ended = run_command(command);
  expect_success(ended);
  const double loss = validation_loss(ended);
  std::cout << "validation loss after 2000 steps: " << loss << "\n";
  EXPECT_GT(loss, 1.80) << ended.out;
  EXPECT_LT(loss, 1.93) << ended.out;
}

}  // namespace
}  // namespace ashlar::system_test
