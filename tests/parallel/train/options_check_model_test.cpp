// Sizes of the model.
#include <gmock/gmock.h>

#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Dropout, IsAtLeast0AndBelow1) {
  EXPECT_EQ(legal_options().hidden_dropout, 0);
  EXPECT_EQ(legal_options().attention_dropout, 0);
  EXPECT_EQ(legal_options({"--hidden-dropout", "0.1"}).hidden_dropout, 0.1);
  EXPECT_EQ(legal_options({"--attention-dropout", "0.999"}).attention_dropout, 0.999);
  for (const char* flag : {"--hidden-dropout", "--attention-dropout"}) {
    EXPECT_THAT(parse_refusal({flag, "-0.1"}),
                AllOf(HasSubstr(flag), HasSubstr("at least 0 and below 1"), HasSubstr("nearest legal value: 0")));
    EXPECT_THAT(parse_refusal({flag, "1"}), AllOf(HasSubstr(flag), HasSubstr("at least 0 and below 1, got '1'"),
                                                  HasSubstr("nearest legal values: those just below 1")));
  }
}

TEST(Model, SizesMustDivide) {
  EXPECT_THAT(
      resolve_refusal({"--tensor-model-parallel-size", "5"}, 5),
      AllOf(HasSubstr("--num-attention-heads 12"), HasSubstr("--tensor-model-parallel-size 5"),
            HasSubstr("1, 2, 3, 4, 6, 12"), HasSubstr("--hidden-size 48 has no number of heads that it can share"),
            HasSubstr("--ffn-hidden-size 192")));
  EXPECT_THAT(resolve_refusal({"--ffn-hidden-size", "50", "--tensor-model-parallel-size", "4"}, 4),
              AllOf(HasSubstr("--ffn-hidden-size 50"), HasSubstr("48 or 52")));
  TrainOptions o = legal_options();
  o.hidden_size = 50;
  EXPECT_THAT(refusal([&] { validate_options(o); }),
              AllOf(HasSubstr("--hidden-size 50"), HasSubstr("--num-attention-heads 12"), HasSubstr("48 or 60")));
  o.hidden_size = 12 * 257;
  EXPECT_THAT(refusal([&] { validate_options(o); }),
              AllOf(HasSubstr("257 values per head, attention takes at most 256"),
                    HasSubstr("nearest legal --num-attention-heads: 257")));
  o.hidden_size = 12 * 512;
  EXPECT_THAT(refusal([&] { validate_options(o); }), HasSubstr("nearest legal --num-attention-heads: 24"));
  o.num_attention_heads = 24;
  EXPECT_NO_THROW(validate_options(o));
  o.num_attention_heads = 12;
  o.hidden_size = 12 * 256;
  EXPECT_NO_THROW(validate_options(o));
  EXPECT_THAT(resolve_refusal({"--kv-channels", "8"}),
              AllOf(HasSubstr("--kv-channels 8"), HasSubstr("nearest legal value: 4")));
  EXPECT_THAT(resolve_refusal({"--max-position-embeddings", "8"}),
              AllOf(HasSubstr("--seq-length 16"), HasSubstr("--max-position-embeddings 8")));
  EXPECT_THAT(resolve_refusal({"--vocab-size", "256"}), HasSubstr("nearest legal value: 257"));
  EXPECT_THAT(resolve_refusal({"--tokenizer-type", "NullTokenizer"}), HasSubstr("--vocab-size"));
}

// Any vocabulary is legal on any tensor size: it is padded.
TEST(Model, VocabularyIsPadded) {
  EXPECT_EQ(padded_vocab_size(65, 1, 2), 66);
  EXPECT_EQ(padded_vocab_size(67, 1, 4), 68);
  EXPECT_EQ(padded_vocab_size(65, 128, 2), 256);
  EXPECT_EQ(padded_vocab_size(256, 128, 2), 256);
  EXPECT_EQ(padded_vocab_size(50257, 128, 1), 50304);
  for (const char* vocab : {"65", "67"}) {
    for (const char* t : {"2", "4"}) {
      EXPECT_NO_THROW(resolve_options(legal_options({"--tokenizer-type", "NullTokenizer", "--vocab-size", vocab,
                                                     "--tensor-model-parallel-size", t}),
                                      4));
    }
  }
}

}  // namespace
}  // namespace ashlar
