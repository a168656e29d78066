// Data and files.
#include <gmock/gmock.h>

#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::HasSubstr;

TEST(Data, SourcesAndSplits) {
  EXPECT_THAT(resolve_refusal({"--data-path", "x"}), HasSubstr("the data is given more than once"));
  EXPECT_THAT(resolve_refusal({"--valid-data-path", "x"}), HasSubstr("--train-data-path"));
  EXPECT_EQ(legal_options({"--split", "949, 50, 1"}).split, "949,50,1");
  for (const char* split : {"1", "90,10", "0.9,0.1,0", "100,0,0"}) {
    EXPECT_NO_THROW(validate_options(legal_options({"--split", split}))) << split;
  }
  for (const char* split : {"0,1,1", "a,b", "1,2,3,4", "1,,2", "-1,2,3", "1,2,", ","}) {
    EXPECT_THAT(resolve_refusal({std::string("--split=") + split}), HasSubstr("969,30,1")) << split;
  }
  TrainOptions o = legal_options({"--split", "1,0,0", "--eval-interval", "5"});
  EXPECT_NO_THROW(validate_options(o));
  o.mock_data = false;
  o.data_path = {"corpus"};
  EXPECT_THAT(refusal([&] { validate_options(o); }), HasSubstr("--split 1,0,0 sets none aside"));
  o.data_path.clear();
  o.train_data_path = {"corpus"};
  EXPECT_THAT(refusal([&] { validate_options(o); }), HasSubstr("--valid-data-path"));
}

TEST(Files, Contradictions) {
  EXPECT_THAT(resolve_refusal({"--save-interval", "5"}), HasSubstr("needs --save DIR"));
  EXPECT_THAT(resolve_refusal({"--load", "a", "--load-hf", "b"}), HasSubstr("both bring weights"));
  EXPECT_NO_THROW(validate_options(legal_options({"--load", "a", "--save", "a", "--load-hf", "b"})));
}

}  // namespace
}  // namespace ashlar
