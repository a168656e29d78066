// From words to options: names, values, repeats.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "parallel/train/flags.h"
#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

TEST(Parse, BothWaysOfGivingAValue) {
  const TrainOptions o = legal_options({"--clip-grad=0.25", "--eod-mask-loss", "--weight-decay", "1e-1"});
  EXPECT_EQ(o.clip_grad, 0.25);
  EXPECT_EQ(o.weight_decay, 0.1);
  EXPECT_TRUE(o.eod_mask_loss);
  EXPECT_FALSE(legal_options({"--eod-mask-loss=false"}).eod_mask_loss);
}

TEST(Parse, ListsTakeWordsUpToTheNextFlag) {
  const TrainOptions o = legal_options({"--train-data-path", "a", "b", "c", "--seed", "5"});
  EXPECT_THAT(o.train_data_path, testing::ElementsAre("a", "b", "c"));
  EXPECT_EQ(o.seed, 5);
}

// Every list: no entry may be blank; of a list of names each may stand there once; files may, and notes say what that
// means.
TEST(Parse, ListsHaveNoBlankAndNoRepeatedEntries) {
  int lists = 0;
  for (const Flag& flag : all_flags()) {
    if (!flag.is_list()) {
      continue;
    }
    ++lists;
    const std::string name = "--" + flag.name, good = flag.choices.empty() ? "a" : flag.choices[0];
    for (const char* blank : {"", " ", "\t"}) {
      EXPECT_THAT(
          refusal([&] {
            parse_train_options({name, good, blank});
          }),
          AllOf(HasSubstr(name + " needs a value ("), HasSubstr(blank[0] ? "got a blank one" : "got an empty one")));
    }
    if (flag.status != FlagStatus::kDone) {
      continue;
    }
    if (flag.choices.empty()) {
      EXPECT_THAT(parse_train_options({name, good, "b", good}).notes,
                  Contains(HasSubstr(name + " has a 2 times: so often its samples are read")));
      EXPECT_TRUE(parse_train_options({name, "0.5", "a", "0.5", "b"}).notes.empty()) << "weights may be equal";
    } else {
      EXPECT_THAT(refusal([&] {
                    parse_train_options({name, good, flag.choices[1], good});
                  }),
                  HasSubstr(name + " has " + good + " more than once"));
      EXPECT_THAT(refusal([&] {
                    parse_train_options({name, good, "nonsense"});
                  }),
                  HasSubstr(fmt::format("{} expects some of {}", name, fmt::join(flag.choices, ", "))));
    }
  }
  EXPECT_GE(lists, 5);
}

TEST(Parse, UnknownFlagsGetASuggestion) {
  EXPECT_THAT(parse_refusal({"--num-layer", "4"}), HasSubstr("unknown flag --num-layer; did you mean --num-layers?"));
  EXPECT_THAT(parse_refusal({"--num_layers", "4"}), HasSubstr("did you mean --num-layers?"));
  EXPECT_THAT(parse_refusal({"--hidden_size=4"}), HasSubstr("unknown flag --hidden_size; did you mean --hidden-size?"));
  EXPECT_THAT(parse_refusal({"--clipgrad", "1"}), HasSubstr("did you mean --clip-grad?"));
  EXPECT_THAT(parse_refusal({"--tensor-model-paralel-size", "2"}), HasSubstr("--tensor-model-parallel-size?"));
  EXPECT_THAT(parse_refusal({"--num-att", "2"}), HasSubstr("did you mean --num-attention-heads?"));  // abbreviation
  EXPECT_THAT(parse_refusal({"--zzzzzzzz"}), AllOf(HasSubstr("unknown flag --zzzzzzzz"), Not(HasSubstr("mean"))));
  EXPECT_THAT(parse_refusal({"-x"}), HasSubstr("unknown flag -x"));
  EXPECT_THAT(parse_refusal({"--seed", "4", "5"}), HasSubstr("'5' belongs to no flag"));
}

TEST(Parse, ValuesOfTheWrongKind) {
  EXPECT_THAT(parse_refusal({"--seed", "x"}), HasSubstr("--seed expects a whole number of at least 0, got 'x'"));
  EXPECT_THAT(parse_refusal({"--seed", "1.5"}), HasSubstr("whole number"));
  EXPECT_THAT(parse_refusal({"--seed", "99999999999999999999"}), HasSubstr("--seed"));
  EXPECT_THAT(parse_refusal({"--tensor-model-parallel-size", "3000000000"}), HasSubstr("at most 2147483647"));
  for (const char* flag : {"--ddp-bucket-size", "--eval-interval", "--seed"}) {
    EXPECT_THAT(parse_refusal({flag, "9223372036854775807"}), AllOf(HasSubstr(flag), HasSubstr("at most 1099511627776"),
                                                                    HasSubstr("nearest legal value: 1099511627776")));
  }
  EXPECT_THAT(parse_refusal({"--memory-limit-gb", "1e18"}), HasSubstr("nearest legal value: 1000000"));
  EXPECT_THAT(parse_refusal({"--clip-grad", "nan"}), HasSubstr("--clip-grad expects a number"));
  EXPECT_THAT(parse_refusal({"--clip-grad", "inf"}), HasSubstr("--clip-grad expects a number"));
  EXPECT_THAT(parse_refusal({"--clip-grad", "1,5"}), HasSubstr("got '1,5'"));
  EXPECT_THAT(parse_refusal({"--clip-grad", "-1"}), AllOf(HasSubstr("got '-1'"), HasSubstr("nearest legal value: 0")));
  EXPECT_THAT(parse_refusal({"--adam-beta1", "1"}),
              HasSubstr("--adam-beta1 expects a number of at least 0 and below 1"));
  EXPECT_THAT(parse_refusal({"--adam-beta2", "-0.1"}), HasSubstr("nearest legal value: 0"));
  EXPECT_THAT(parse_refusal({"--ffn-hidden-size", "0"}), HasSubstr("nearest legal value: 1"));
  EXPECT_THAT(parse_refusal({"--seed"}), HasSubstr("--seed needs a value (N)"));
  EXPECT_THAT(parse_refusal({"--seed", "--mock-data"}),
              HasSubstr("--seed needs a value (N), but --mock-data follows it"));
  EXPECT_THAT(parse_refusal({"--data-path"}), HasSubstr("--data-path needs a value"));
  EXPECT_THAT(parse_refusal({"--save="}), HasSubstr("--save"));
  EXPECT_THAT(parse_refusal({"--save", " "}), HasSubstr("--save needs a value (DIR), got a blank one (' ')"));
  EXPECT_THAT(parse_refusal({"--zero-stage", "4"}), HasSubstr("nearest legal value: 3"));
  EXPECT_THAT(parse_refusal({"--train-samples", "1e6"}), HasSubstr("nearest legal value: 1000000"));
  EXPECT_THAT(parse_refusal({"--hysteresis", "2.5"}), HasSubstr("nearest legal values: 2 and 3"));
  EXPECT_THAT(parse_refusal({"--hysteresis", "0.5"}), HasSubstr("nearest legal value: 1"));
  EXPECT_THAT(parse_refusal({"--eod-mask-loss=maybe"}), HasSubstr("--eod-mask-loss is a switch"));
  EXPECT_THAT(parse_refusal({"--optimizer", "adma"}),
              HasSubstr("--optimizer expects one of adam, sgd; got 'adma'; did you mean adam?"));
  EXPECT_THAT(parse_refusal({"--device", "gpu"}),
              AllOf(HasSubstr("--device expects one of cuda, cpu, auto; got 'gpu'"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(parse_refusal({"--optimizer", "muon"}), HasSubstr("--optimizer muon is not supported yet"));
  EXPECT_THAT(parse_refusal({"--lr-decay-style", "WSD"}), HasSubstr("not supported yet; this version has linear"));
  EXPECT_THAT(parse_refusal({"--pipeline-schedule", "interleaved"}), HasSubstr("1f1b, gpipe"));
  EXPECT_THAT(parse_refusal({"--tokenizer-type", "GPT2BPETokenizer"}), HasSubstr("not supported yet"));
}

TEST(Parse, RepeatsMustAgree) {
  EXPECT_EQ(legal_options({"--seed", "4", "--seed", "4"}).seed, 4);
  EXPECT_THAT(parse_refusal({"--seed", "4", "--seed", "5"}), HasSubstr("--seed is given with different values: 4, 5"));
  EXPECT_THAT(parse_refusal({"--data-path", "a", "--data-path", "b"}), HasSubstr("--data-path is given 2 times"));
  EXPECT_TRUE(legal_options({"--eod-mask-loss", "--eod-mask-loss"}).eod_mask_loss);
  EXPECT_THAT(parse_refusal({"--openai-gelu", "--activation", "gelu-erf"}), HasSubstr("--openai-gelu asks for"));
}

TEST(Parse, Timeout) {
  EXPECT_EQ(legal_options({"--distributed-timeout-minutes", "2"}).distributed_timeout_seconds, 120);
  EXPECT_EQ(legal_options({"--distributed-timeout-minutes", "2m"}).distributed_timeout_seconds, 120);
  EXPECT_EQ(legal_options({"--distributed-timeout-minutes", "30s"}).distributed_timeout_seconds, 30);
  EXPECT_EQ(legal_options({"--distributed-timeout-minutes", "0.5"}).distributed_timeout_seconds, 30);
  for (const char* wrong : {"0", "-1", "s", "m", "10h", "ten"}) {
    EXPECT_THAT(parse_refusal({"--distributed-timeout-minutes", wrong}), HasSubstr(fmt::format("got '{}'", wrong)));
  }
}

TEST(Parse, Activation) {
  EXPECT_FALSE(legal_options().gelu_erf);
  EXPECT_TRUE(legal_options({"--activation", "gelu-erf"}).gelu_erf);
  EXPECT_FALSE(legal_options({"--openai-gelu"}).gelu_erf);
  EXPECT_FALSE(legal_options({"--no-check-for-nan-in-loss-and-grad"}).check_for_nan_in_loss_and_grad);
}

TEST(Parse, GivenNamesAndUnusedSettings) {
  const ParsedCommand parsed =
      parse_train_options(legal_args({"--optimizer", "sgd", "--adam-beta1", "0.5", "--eval-iters", "3"}));
  EXPECT_THAT(parsed.given, Contains("adam-beta1"));
  EXPECT_THAT(parsed.given, Not(Contains("adam-beta2")));
  EXPECT_THAT(parsed.notes, Contains(HasSubstr("--adam-beta1 has no use here: the optimizer is sgd")));
  EXPECT_THAT(parsed.notes, Contains(HasSubstr("--eval-iters has no use here")));
  EXPECT_TRUE(parse_train_options(legal_args()).notes.empty());
}

}  // namespace
}  // namespace ashlar
