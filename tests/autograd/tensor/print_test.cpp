#include "autograd/tensor/print.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iomanip>
#include <sstream>

#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

std::string text(const Tensor& x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

TEST(Print, UndefinedScalarsAndEmpty) {
  EXPECT_EQ(text({}), "undefined");
  EXPECT_EQ(text(scalar(1.5)), "tensor(1.5000)");
  EXPECT_EQ(text(scalar(-3)), "tensor(-3.)");
  EXPECT_EQ(text(scalar(7, kInt64)), "tensor(7, dtype=int64)");
  EXPECT_EQ(text(empty({0})), "tensor([])");
  EXPECT_EQ(text(empty({2, 0}, kInt32)), "tensor([], shape=[2, 0], dtype=int32)");
}

TEST(Print, ColumnsAreAligned) {
  EXPECT_EQ(text(tensor({1, -0.5, 10.25, 3}).reshape({2, 2})),
            "tensor([[ 1.0000, -0.5000],\n"
            "        [10.2500,  3.0000]])");
  EXPECT_EQ(text(tensor({1, -2, 100})), "tensor([  1.,  -2., 100.])");
  EXPECT_EQ(text(tensor(std::vector<int64_t>{1, -20, 3}, {3})),
            "tensor([  1, -20,   3], dtype=int64)");
  EXPECT_EQ(text(tensor({1, 0}).to(kBool)), "tensor([ True, False], dtype=bool)");
}

TEST(Print, BlocksOfMoreThanTwoAxes) {
  EXPECT_EQ(text(arange(8, kFloat32).reshape({2, 2, 2})),
            "tensor([[[0., 1.],\n"
            "         [2., 3.]],\n"
            "\n"
            "        [[4., 5.],\n"
            "         [6., 7.]]])");
}

TEST(Print, ScientificWhereMagnitudesDemandIt) {
  EXPECT_EQ(text(tensor({0.00001, 1})), "tensor([1.0000e-05, 1.0000e+00])");
  EXPECT_EQ(text(tensor({0.5, 1000})), "tensor([5.0000e-01, 1.0000e+03])");
  EXPECT_EQ(text(tensor({1, 2e9})), "tensor([1.0000e+00, 2.0000e+09])");
  EXPECT_EQ(text(tensor({1, 20000})), "tensor([    1., 20000.])");
}

TEST(Print, NonFiniteValues) {
  EXPECT_EQ(text(tensor({NAN, INFINITY, -INFINITY, 0.5})),
            "tensor([   nan,    inf,   -inf, 0.5000])");
  EXPECT_EQ(text(tensor({NAN, 1})), "tensor([nan,  1.])");
}

TEST(Print, LargeTensorsAreSummarised) {
  EXPECT_EQ(text(arange(1001, kInt64)),
            "tensor([   0,    1,    2, ...,  998,  999, 1000], shape=[1001], dtype=int64)");
  EXPECT_EQ(text(zeros({200, 7})),
            "tensor([[0., 0., 0., ..., 0., 0., 0.],\n"
            "        [0., 0., 0., ..., 0., 0., 0.],\n"
            "        [0., 0., 0., ..., 0., 0., 0.],\n"
            "        ...,\n"
            "        [0., 0., 0., ..., 0., 0., 0.],\n"
            "        [0., 0., 0., ..., 0., 0., 0.],\n"
            "        [0., 0., 0., ..., 0., 0., 0.]], shape=[200, 7])");
}

TEST(Print, LongRowsAreWrapped) {
  const std::string out = text(arange(1, 41, 1, kFloat32));
  std::istringstream lines(out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_LE(line.size(), 80U);
  }
  EXPECT_EQ(count, 3);
  EXPECT_THAT(out, ::testing::HasSubstr("14.,\n        15., 16."));
}

TEST(Print, ViewsHalvesAndLargeIntegers) {
  EXPECT_EQ(text(tensor({1, 2, 3, 4}).reshape({2, 2}).t()),
            "tensor([[1., 3.],\n"
            "        [2., 4.]])");
  EXPECT_EQ(text(slice(tensor({1, 2, 3, 4}), 0, 1, 4, 2)), "tensor([2., 4.])");
  EXPECT_EQ(text(tensor({0.5, 1}).to(kBFloat16)), "tensor([0.5000, 1.0000], dtype=bfloat16)");
  EXPECT_EQ(text(tensor(std::vector<int64_t>{9007199254740993}, {1})),
            "tensor([9007199254740993], dtype=int64)");
}

TEST(Print, NamesRequiresGradAndLeavesTheStreamAlone) {
  EXPECT_EQ(text(tensor({1}).set_requires_grad()), "tensor([1.], requires_grad=True)");
  std::ostringstream out;
  out << std::setprecision(2) << std::hex << tensor({0.5}) << 255 << ' ' << 0.125;
  EXPECT_EQ(out.str(), "tensor([0.5000])ff 0.12");
}

}  // namespace
}  // namespace tapestry
