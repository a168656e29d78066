// Checkpoints of whole jobs: resumed on the same grid and on others, damaged, in the way, and of another model.
#include <filesystem>
#include <fstream>

#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

namespace fs = std::filesystem;

class Checkpoints : public SystemTest {
 protected:
  void flip_byte(const std::string& name, int64_t at) {
    std::fstream file(path(name), std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file.good()) << name;
    file.seekg(at, at < 0 ? std::ios::end : std::ios::beg);
    const char byte = static_cast<char>(file.get());
    file.seekp(at, at < 0 ? std::ios::end : std::ios::beg);
    file.put(static_cast<char>(byte ^ 0x10));
  }
  // The grid's own run of 8 steps, and the same with a stop at step 4.
  Flags eight_steps() const { return tiny().with("--train-iters 8"); }
  void save_at_4(int num_ranks, const std::string& grid) {
    expect_success(
        pretrain(num_ranks, eight_steps().with(grid).with("--exit-interval 4 --save ck --metrics-file metrics.jsonl")));
  }
  Flags resume() const { return eight_steps().with("--load ck --metrics-file metrics.jsonl"); }
};

TEST_F(Checkpoints, ResumeIsAsIfNeverStopped) {
  // An epoch is exactly 4 steps of 8 samples, so the stops lie before, at and behind its end.
  const std::string corpus = make_corpus("corpus", 4 * 8 * 48 + 1);
  const Flags flags = tiny()
                          .without("mock-data")
                          .with(kGrid221)
                          .with("--train-iters 10 --check-weight-hash --seq-length 48 --data-path " + corpus +
                                " --split 1,0,0 --eod-mask-loss");
  expect_success(pretrain(4, flags.with("--metrics-file whole.jsonl")));
  for (const char* stop : {"3", "4", "5", "8"}) {
    const std::string save = std::string("ck") + stop, metrics = std::string("m") + stop + ".jsonl";
    const Flags part = flags.with("--save " + save + " --metrics-file " + metrics);
    expect_success(pretrain(4, part.with(std::string("--exit-interval ") + stop)));
    const Ended resumed = pretrain(4, part.with("--load " + save));
    expect_success(resumed);
    EXPECT_EQ(count(resumed.err, "resumed from " + save + " at iteration " + stop), 1) << resumed.err;
    ASSERT_EQ(steps_of(metrics).size(), 10u);
    expect_same_steps(steps_of(metrics), steps_of("whole.jsonl"));
  }
  // A finished run, started again, trains nothing and leaves everything.
  const Snapshot before = snapshot();
  expect_success(pretrain(4, flags.with("--save ck4 --load ck4 --metrics-file m4.jsonl")));
  EXPECT_EQ(snapshot(), before);
}

TEST_F(Checkpoints, AnyGridGoesOn) {
  expect_success(pretrain(1, eight_steps().with("--metrics-file whole.jsonl")));
  const std::vector<StepLine> whole = steps_of("whole.jsonl");
  save_at_4(8, kGrid221);
  const auto near = [](const nlohmann::json& value, const nlohmann::json& expected, double tolerance) {
    EXPECT_NEAR(value.get<double>() / expected.get<double>(), 1, tolerance);
  };
  const auto go_on = [&](int num_ranks, const Flags& grid) {
    const Snapshot first_part = snapshot();
    expect_success(pretrain(num_ranks, resume().with(grid.text())));
    const std::vector<StepLine> steps = steps_of("metrics.jsonl");
    ASSERT_EQ(steps.size(), 8u);
    for (size_t at = 0; at < 8; ++at) {
      near(steps[at].loss, whole[at].loss, 1e-5);
      near(steps[at].grad_norm, whole[at].grad_norm, 1e-4);
    }
  };
  go_on(1, Flags(""));
  go_on(2, Flags(kGrid212));
  go_on(3, Flags("--pipeline-model-parallel-size 3"));
  // And back: saved again on one rank, read by the grid that began.
  expect_success(pretrain(1, eight_steps().with("--load ck --save ck --exit-interval 6 --metrics-file metrics.jsonl")));
  go_on(8, Flags(kGrid221));
}

// A run of the first format: two steps on tensor 2 x pipeline 2. Losses and norms are those with which that version
// went on.
TEST_F(Checkpoints, OfTheFirstFormatGoesOn) {
  fs::copy(GOLDEN "/checkpoint_v1_run", path("ck"), fs::copy_options::recursive);
  const Flags flags(
      "--mock-data --num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 8 --vocab-size 15 "
      "--make-vocab-size-divisible-by 1 --tokenizer-type NullTokenizer --micro-batch-size 1 --global-batch-size 4 "
      "--train-iters 4 --lr 1e-2 --lr-decay-style constant --load ck");
  const double losses[] = {2.7906780019402504, 2.77323879301548}, norms[] = {0.6347253652776245, 0.6108750531232701};
  for (const int num_ranks : {1, 2}) {
    const std::string metrics = "m" + std::to_string(num_ranks) + ".jsonl";
    expect_success(
        pretrain(num_ranks, flags.with("--metrics-file " + metrics + (num_ranks == 2 ? " --zero-stage 1" : ""))));
    const std::vector<StepLine> steps = steps_of(metrics);
    ASSERT_EQ(steps.size(), 2u);
    for (size_t at = 0; at < 2; ++at) {
      EXPECT_NEAR(steps[at].loss.get<double>(), losses[at], 1e-5);
      EXPECT_NEAR(steps[at].grad_norm.get<double>(), norms[at], 1e-4);
    }
  }
}

TEST_F(Checkpoints, LoadWithoutCheckpoint) {
  const Snapshot before = snapshot();
  expect_error(pretrain(2, tiny().with("--load nothing")), ErrorCode::kCheckpoint,
               {"--load nothing: no whole checkpoint there", "nothing/latest_checkpointed_iteration.txt"});
  expect_error(pretrain(1, tiny().with("--load nothing --save elsewhere")), ErrorCode::kCheckpoint,
               {"--load nothing: no whole checkpoint there"});
  expect_error(pretrain(1, tiny().with("--load nothing --save nothing --exit-on-missing-checkpoint")),
               ErrorCode::kCheckpoint, {"--load nothing: no whole checkpoint there"});
  EXPECT_EQ(snapshot(), before);
  const Ended fresh = pretrain(2, tiny().with("--load ck --save ck"));
  expect_success(fresh);
  EXPECT_EQ(count(fresh.err, "no checkpoint in ck yet (it is also --save): starting fresh"), 1) << fresh.err;
  EXPECT_TRUE(fs::exists(path("ck/iter_0000006/manifest.json")));
}

TEST_F(Checkpoints, LoadOfAFileAndSaveOverAnOlderRun) {
  std::ofstream(path("file")) << "not a directory\n";
  expect_error(pretrain(2, tiny().with("--load file --save other")), ErrorCode::kCheckpoint,
               {"--load file: expected a directory that --save wrote, found a file"});
  save_at_4(2, kGrid122);
  const Ended anew = pretrain(2, tiny().with(kGrid122).with("--save ck"));
  expect_success(anew);
  EXPECT_EQ(count(anew.err, "[warning] --save ck holds iteration 4 of an earlier run"), 1) << anew.err;
  EXPECT_TRUE(fs::exists(path("ck/iter_0000004/manifest.json")));
}

TEST_F(Checkpoints, DamageIsNamedAndNeverLoaded) {
  save_at_4(2, kGrid122);
  fs::copy(path("ck"), path("good"), fs::copy_options::recursive);
  const auto restore = [&] {
    fs::remove_all(path("ck"));
    fs::copy(path("good"), path("ck"), fs::copy_options::recursive);
  };
  const auto expect_refused = [&](const std::vector<std::string>& texts) {
    const Snapshot before = snapshot();
    const Ended ended = pretrain(2, resume().with(kGrid122).with("--save other"));
    EXPECT_EQ(ended.exit_code, exit_code(ErrorCode::kCheckpoint)) << ended.all();
    EXPECT_EQ(count(ended.err, "[error]"), 1) << ended.err;
    for (const std::string& text : texts) {
      EXPECT_THAT(ended.err, HasSubstr(text));
    }
    EXPECT_EQ(snapshot(), before);
    restore();
  };
  flip_byte("ck/iter_0000004/rank_00001.safetensors", -1000);
  expect_refused({"iter_0000004/rank_00001.safetensors is damaged: tensor", "expected hash"});
  flip_byte("ck/iter_0000004/rank_00000.safetensors", 40);
  expect_refused({"iter_0000004/rank_00000.safetensors", "is damaged"});
  flip_byte("ck/iter_0000004/manifest.json", 100);
  expect_refused({"iter_0000004", "manifest"});
  fs::remove(path("ck/iter_0000004/rank_00001.safetensors"));
  expect_refused({"rank_00001.safetensors"});
  fs::resize_file(path("ck/iter_0000004/rank_00001.safetensors"), 1000);
  expect_refused({"rank_00001.safetensors", "1000"});
}

TEST_F(Checkpoints, AnOlderWholeSetIsUsedAndSaidSo) {
  const Flags flags = eight_steps().with("--metrics-file metrics.jsonl");
  expect_success(pretrain(1, flags.with("--metrics-file whole.jsonl")));
  expect_success(pretrain(1, flags.with("--exit-interval 5 --save ck --save-interval 1")));
  fs::remove(path("ck/iter_0000005/rank_00000.safetensors"));
  const Ended ended = pretrain(1, flags.with("--load ck"));
  expect_success(ended);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("iteration 5"), HasSubstr("is damaged and skipped"),
                               HasSubstr("iteration 4 is the newest whole checkpoint"),
                               HasSubstr("resumed from ck at iteration 4")));
  ASSERT_EQ(steps_of("metrics.jsonl").size(), 8u);
  expect_same_steps(steps_of("metrics.jsonl"), steps_of("whole.jsonl"));
}

TEST_F(Checkpoints, OfAnotherModel) {
  save_at_4(2, kGrid122);
  const Snapshot before = snapshot();
  const auto expect_refused = [&](const std::string& change, const std::vector<std::string>& texts) {
    expect_error(pretrain(2, eight_steps().with(kGrid122).with("--load ck --save ck").with(change)),
                 ErrorCode::kCheckpoint, texts);
    EXPECT_EQ(snapshot(), before);
  };
  expect_refused("--hidden-size 64",
                 {"--load ck: --hidden-size is 64 here", "written with 32", "give --hidden-size 32"});
  expect_refused("--num-layers 2", {"--num-layers is 2 here", "written with 4"});
  expect_refused("--vocab-size 300", {"--vocab-size is 300 here", "written with 257"});
  expect_refused("--optimizer sgd", {"--optimizer is sgd here", "written with adam; give --optimizer adam, or"});
  expect_refused("--untie-embeddings-and-output-weights",
                 {"--untie-embeddings-and-output-weights is on here", "written with off",
                  "leave --untie-embeddings-and-output-weights out"});
  // What only changes how training goes on is allowed, and said.
  const Ended ended = pretrain(2, eight_steps().with(kGrid122).with("--load ck --lr 5e-3 --seed 7"));
  expect_success(ended);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("--lr was 0.01, is 0.005 now"), HasSubstr("--seed was 1234, is 7 now")));
  const Ended rounded = pretrain(2, eight_steps().with(kGrid122).with("--load ck --bf16"));
  expect_success(rounded);
  EXPECT_THAT(rounded.err, HasSubstr("--bf16 was off, is on now"));
  // With NullTokenizer one id more than --vocab-size says is in the model, but not in what the user types.
  const Flags ids = tiny().with("--tokenizer-type NullTokenizer --train-iters 2");
  expect_success(pretrain(1, ids.with("--vocab-size 64 --save ids")));
  expect_error(pretrain(1, ids.with("--vocab-size 70 --load ids")), ErrorCode::kCheckpoint,
               {"--vocab-size is 70 here", "written with 64", "give --vocab-size 64"});
  // A longer run at a constant rate is no other run.
  expect_success(pretrain(1, tiny().with("--train-iters 2 --lr-decay-style constant --save constant")));
  const Ended longer = pretrain(1, eight_steps().with("--lr-decay-style constant --load constant"));
  expect_success(longer);
  EXPECT_THAT(longer.err, AllOf(HasSubstr("resumed from constant"), Not(HasSubstr("is 8 now"))));
}

TEST_F(Checkpoints, PlacesThatCannotBeWritten) {
  std::ofstream(path("file")) << "in the way\n";
  const Snapshot before = snapshot();
  expect_error(pretrain(2, tiny().with("--save file")), ErrorCode::kCheckpoint, {"file", "directory"});
  expect_error(pretrain(2, tiny().with("--save file/below")), ErrorCode::kCheckpoint, {"file/below"});
  expect_error(pretrain(2, tiny().with("--save /proc/ashlar")), ErrorCode::kCheckpoint, {"/proc/ashlar"});
  expect_error(pretrain(2, tiny().with("--metrics-file /proc/ashlar/m.jsonl")), ErrorCode::kUsage,
               {"--metrics-file /proc/ashlar/m.jsonl", "cannot be written"});
  expect_error(pretrain(1, tiny().with("--metrics-file file")), ErrorCode::kUsage,
               {"--metrics-file file: line 1 is not a line of metrics; the file is left alone"});
  EXPECT_EQ(snapshot(), before);
}

}  // namespace
}  // namespace ashlar::system_test
