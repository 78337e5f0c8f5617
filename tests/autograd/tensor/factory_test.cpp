#include "autograd/tensor/factory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Factory, FilledTensorsOfEveryDType) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(empty({2, 3}, dtype).shape(), (Shape{2, 3}));
    EXPECT_THAT(zeros({2, 3}, dtype).to_vector<double>(), Each(0.0)) << name_of(dtype);
    EXPECT_THAT(ones({2, 3}, dtype).to_vector<double>(), Each(1.0)) << name_of(dtype);
    const Tensor filled = full({3}, 3, dtype);
    EXPECT_EQ(filled.dtype(), dtype);
    EXPECT_THAT(filled.to_vector<double>(), Each(dtype == kBool ? 1.0 : 3.0)) << name_of(dtype);
    EXPECT_EQ(zeros_like(filled).dtype(), dtype);
    EXPECT_EQ(ones_like(filled).shape(), Shape{3});
    EXPECT_EQ(empty_like(filled).dtype(), dtype);
  }
  EXPECT_EQ(zeros({2}).dtype(), kFloat32);
  EXPECT_EQ(zeros({0, 3}).numel(), 0);
  EXPECT_EQ(ones({}).item(), 1);
}

TEST(Factory, LikeIsContiguous) {
  const Tensor x = zeros({2, 3});
  EXPECT_TRUE(zeros_like(alias(x, {3, 2}, {1, 3}, 0)).is_contiguous());
}

TEST(Factory, BadShapes) {
  EXPECT_THROW(empty({2, -1}), ValueError);
  const int64_t huge = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_THROW(empty({huge, 2}), ValueError);
  EXPECT_THROW(empty({huge, huge}), ValueError);
}

TEST(Factory, MoreThanTheMachineHas) {
  try {
    (void)empty({int64_t{1} << 50}, kFloat64);
    FAIL() << "a pebibyte was there";
  } catch (const RuntimeError& e) {
    EXPECT_THAT(e.what(), HasSubstr("empty: no memory for 9007199254740992 bytes"));
    EXPECT_THAT(e.what(), HasSubstr("MiB in use"));
  }
}

TEST(Factory, Arange) {
  EXPECT_THAT(arange(4).to_vector<int64_t>(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(arange(4).dtype(), kInt64);
  EXPECT_THAT(arange(1, 2, 0.25, kFloat32).to_vector<float>(), ElementsAre(1, 1.25, 1.5, 1.75));
  EXPECT_THAT(arange(5, 0, -2).to_vector<int64_t>(), ElementsAre(5, 3, 1));
  EXPECT_EQ(arange(2, 2).numel(), 0);
  EXPECT_THROW(arange(0, 4, 0), ValueError);
  EXPECT_THROW(arange(0, 4, -1), ValueError);
  EXPECT_THROW(arange(4, 0, 1), ValueError);
}

TEST(Factory, Linspace) {
  EXPECT_THAT(linspace(0, 1, 5, kFloat64).to_vector<double>(), ElementsAre(0, 0.25, 0.5, 0.75, 1));
  EXPECT_THAT(linspace(3, 5, 1).to_vector<float>(), ElementsAre(3));
  EXPECT_EQ(linspace(3, 5, 0).numel(), 0);
  EXPECT_EQ(linspace(0, 0.1, 7, kFloat64).at({6}), 0.1);  // exactly the end
  EXPECT_THROW(linspace(0, 1, -1), ValueError);
}

TEST(Factory, Eye) {
  EXPECT_THAT(eye(2).to_vector<float>(), ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(eye(2, 3, kInt32).to_vector<int32_t>(), ElementsAre(1, 0, 0, 0, 1, 0));
  EXPECT_EQ(eye(0).shape(), (Shape{0, 0}));
}

TEST(Factory, TensorOfValues) {
  EXPECT_EQ(tensor({1, 2}).dtype(), kFloat32);
  EXPECT_EQ(tensor(std::vector<double>{1, 2}, {2}).dtype(), kFloat64);
  EXPECT_EQ(tensor(std::vector<int32_t>{1, 2}, {2}).dtype(), kInt32);
  EXPECT_EQ(tensor(std::vector<int64_t>{1, 2}, {2, 1}).shape(), (Shape{2, 1}));
  const bool flags[] = {true, false};
  EXPECT_EQ(tensor(std::span<const bool>(flags), {2}).dtype(), kBool);
  EXPECT_EQ(scalar(2.5).shape(), Shape{});
  EXPECT_EQ(scalar(2.5, kFloat64).dtype(), kFloat64);
  EXPECT_THROW(tensor(std::vector<float>{1, 2}, {3}), ValueError);
}

TEST(Factory, FromBlobWrapsMemory) {
  float values[] = {1, 2, 3, 4};
  int released = 0;
  {
    const Tensor x = from_blob(values, {2, 2}, kFloat32, [&] { ++released; });
    const Tensor view = alias(x, {2}, {2}, 1);
    EXPECT_EQ(view.at({1}), 4);
    x.data<float>()[0] = 10;
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(values[0], 10);
  EXPECT_EQ(released, 1);
}

}  // namespace
}  // namespace tapestry
