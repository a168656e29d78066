#include "runtime/base/shape.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

TEST(Shape, SizesAreReadFromBothEnds) {
  const Shape shape{4, 64, 768};
  EXPECT_EQ(shape.num_dims(), 3);
  EXPECT_EQ(shape[0], 4);
  EXPECT_EQ(shape[-1], 768);
  EXPECT_EQ(shape[-3], 4);
  EXPECT_EQ(shape.num_elements(), 4 * 64 * 768);
  EXPECT_EQ(shape.text(), "[4,64,768]");
  EXPECT_THROW(shape[3], Error);
  EXPECT_THROW(shape[-4], Error);
}

TEST(Shape, ScalarsEmptyAndHugeShapesCount) {
  EXPECT_EQ(Shape{}.num_elements(), 1);
  EXPECT_EQ(Shape{}.text(), "[]");
  EXPECT_EQ((Shape{3, 0, 5}).num_elements(), 0);
  EXPECT_EQ((Shape{1 << 20, 1 << 20}).num_elements(), int64_t{1} << 40);
}

TEST(Shape, EqualityIsOfDimsAndSizes) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_FALSE((Shape{2, 3}) == (Shape{3, 2}));
  EXPECT_FALSE((Shape{2}) == (Shape{2, 1}));
  EXPECT_FALSE((Shape{2}) == (Shape{2, 0}));
  Shape changed{2, 5};
  changed.set(-1, 3);
  EXPECT_EQ(changed, (Shape{2, 3}));
}

TEST(Shape, ACountThatDoesNotFitIsAnError) {
  EXPECT_EQ((Shape{int64_t{1} << 31, int64_t{1} << 31}).num_elements(), int64_t{1} << 62);
  EXPECT_THROW((void)(Shape{int64_t{1} << 32, int64_t{1} << 32}).num_elements(), Error);  // would wrap around to 0
  EXPECT_THROW((void)(Shape{int64_t{1} << 32, int64_t{1} << 31}).num_elements(), Error);  // and this below 0
}

TEST(Shape, RefusesSixDimsAndNegativeSizes) {
  EXPECT_THROW((Shape{1, 2, 3, 4, 5, 6}), Error);
  EXPECT_THROW((Shape{2, -1}), Error);
}

}  // namespace
}  // namespace ashlar
