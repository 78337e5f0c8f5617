#include "diagnosis/autopsy/value_range.h"

#include <gtest/gtest.h>

#include <limits>

#include "autograd/ops/ops.h"
#include "autograd/tensor/factory.h"

namespace tapestry::autopsy {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor values(const std::vector<double>& x, DType dtype) {
  return tensor(x, {static_cast<int64_t>(x.size())}).to(dtype);
}

TEST(ValueRange, OfEveryDtype) {
  for (const DType dtype : {kFloat64, kFloat32, kBFloat16, kFloat16}) {
    const ValueRange good = value_range(values({1, -8, 0.5}, dtype));
    EXPECT_TRUE(good.finite());
    EXPECT_EQ(good.largest, 8);
    const ValueRange bad = value_range(values({1, -2, -kInfinity, kNan}, dtype));
    EXPECT_EQ(bad.first_bad, 2);
    EXPECT_EQ(bad.bad_value, "-inf");
    EXPECT_EQ(bad.largest, 2);
    EXPECT_FALSE(bad.all_bad_are_masked);
    EXPECT_TRUE(value_range(values({-kInfinity, 3}, dtype)).all_bad_are_masked);
    EXPECT_FALSE(value_range(values({kInfinity, 3}, dtype)).all_bad_are_masked);
    EXPECT_EQ(place_of_magnitude(values({1, -8, 8}, dtype), 8), 1);
    EXPECT_EQ(place_of_magnitude(values({1, -8, 8}, dtype), 9), -1);
  }
}

// More elements than one thread takes, and the bad one among the last.
TEST(ValueRange, OfManyElements) {
  const Tensor x = full({100'003}, 0.25);
  x.data<float>()[100'001] = static_cast<float>(kNan);
  const ValueRange range = value_range(x);
  EXPECT_EQ(range.first_bad, 100'001);
  EXPECT_EQ(range.bad_value, "nan");
  EXPECT_EQ(range.largest, 0.25);
}

TEST(ValueRange, NumbersElementsRowMajorWhateverTheStrides) {
  const Tensor x = tensor(std::vector<double>{1, 2, 3, 4, kNan, 6}, {2, 3});
  EXPECT_EQ(value_range(x).first_bad, 4);
  EXPECT_EQ(value_range(x.transpose(0, 1)).first_bad, 3);
}

TEST(ValueRange, OfWhatHasNoValues) {
  EXPECT_TRUE(value_range({}).finite());
  EXPECT_TRUE(value_range(zeros({0, 3})).finite());
  EXPECT_TRUE(value_range(full({3}, 7, kInt64)).finite());
  EXPECT_EQ(value_range(full({3}, 7, kInt64)).largest, 0);
  EXPECT_EQ(place_of_magnitude({}, 1), -1);
}

}  // namespace
}  // namespace tapestry::autopsy
