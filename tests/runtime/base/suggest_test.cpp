#include "runtime/base/suggest.h"

#include <gtest/gtest.h>

#include <vector>

namespace ashlar {
namespace {

TEST(EditDistance, CountsEachKindOfChangeOnce) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("layers", "layer"), 1);
  EXPECT_EQ(edit_distance("sieze", "seize"), 1);  // a swap is one change, not two
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
}

TEST(NearestName, FindsWhatWasMeant) {
  const std::vector<std::string> known = {"lr",         "min-lr",    "num-layers", "num-layers-per-stage",
                                          "seq-length", "clip-grad", "save"};
  EXPECT_EQ(nearest_name("num_layers", known), "num-layers");
  EXPECT_EQ(nearest_name("Num-Layers", known), "num-layers");
  EXPECT_EQ(nearest_name("num-layer", known), "num-layers");  // a beginning: the shortest that continues it
  EXPECT_EQ(nearest_name("num-l", known), "num-layers");
  EXPECT_EQ(nearest_name("num-layers-per", known), "num-layers-per-stage");
  EXPECT_EQ(nearest_name("sequence-length", known), "seq-length");
  EXPECT_EQ(nearest_name("grad-clip", known), std::nullopt);  // every letter moved: no guess
  EXPECT_EQ(nearest_name("lrr", known), "lr");
  EXPECT_EQ(nearest_name("completely-else", known), std::nullopt);
  EXPECT_EQ(nearest_name("", known), std::nullopt);
  EXPECT_EQ(nearest_name("x", {}), std::nullopt);
}

}  // namespace
}  // namespace ashlar
