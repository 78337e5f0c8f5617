#include "autograd/ops/indexing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Tensor integers(const std::vector<int64_t>& values, const Shape& shape) {
  return tensor(values, shape);
}
Tensor vector(const std::vector<int64_t>& values) {
  return tensor(values, {static_cast<int64_t>(values.size())});
}
std::vector<int64_t> ints(const Tensor& x) { return x.to_vector<int64_t>(); }
std::vector<float> floats(const Tensor& x) { return x.to_vector<float>(); }

Tensor counted(const Shape& shape) { return arange(shape.numel(), kFloat32).reshape(shape); }

TEST(Indexing, GatherTakesInt32AndKeepsTheDtype) {
  const Tensor x = counted({2, 3});
  const Tensor index = integers({2, 0, 1, 1}, {2, 2});
  EXPECT_THAT(floats(gather(x, 1, index)), ElementsAre(2, 0, 4, 4));
  EXPECT_THAT(floats(gather(x, 1, index.to(kInt32))), ElementsAre(2, 0, 4, 4));
  for (const DType dtype : {kBool, kInt32, kInt64, kFloat16, kBFloat16, kFloat64}) {
    EXPECT_EQ(gather(x.to(dtype), 1, index).dtype(), dtype);
  }
  EXPECT_THAT(ints(gather(x.to(kFloat16), 1, index)), ElementsAre(2, 0, 4, 4));
}

TEST(Indexing, TheLastWriteStays) {
  const Tensor x = zeros({3});
  EXPECT_THAT(floats(scatter(x, 0, vector({1, 2, 1}), tensor({5, 6, 7}))), ElementsAre(0, 7, 6));
  EXPECT_THAT(floats(scatter(x, 0, vector({0, 2}), 4)), ElementsAre(4, 0, 4));
  EXPECT_THAT(floats(index_copy(x, 0, vector({1, 2, 1}), tensor({5, 6, 7}))), ElementsAre(0, 7, 6));
  EXPECT_THAT(floats(x), ElementsAre(0, 0, 0));
}

TEST(Indexing, AnOverwrittenSourceHasNoGradient) {
  const Tensor src = tensor({5, 6, 7});
  src.set_requires_grad();
  sum(scatter(zeros({3}), 0, vector({1, 2, 1}), src)).backward();
  EXPECT_THAT(floats(src.grad()), ElementsAre(0, 1, 1));
}

TEST(Indexing, SumsOfHalvesAreRoundedOnce) {
  // 300 ones: bfloat16 alone would stop counting at 256.
  const Tensor index = zeros({300}, kInt64);
  EXPECT_EQ(scatter_add(zeros({1}, kBFloat16), 0, index, ones({300}, kBFloat16)).item(), 300);
  EXPECT_EQ(index_add(zeros({1}, kBFloat16), 0, index, ones({300}, kBFloat16)).item(), 300);
  const Tensor x = ones({1}, kBFloat16);
  x.set_requires_grad();
  sum(index_select(x, 0, index)).backward();
  EXPECT_EQ(x.grad().item(), 300);
}

TEST(Indexing, SumsOfIntegersAndBool) {
  EXPECT_THAT(ints(scatter_add(vector({1, 2}), 0, vector({1, 1}), vector({5, 6}))),
              ElementsAre(1, 13));
  EXPECT_THAT(scatter_add(zeros({2}, kBool), 0, vector({1, 1}), ones({2}, kBool)).to_vector<bool>(),
              ElementsAre(false, true));
}

TEST(Indexing, Coordinates) {
  const Tensor x = counted({3, 4});
  EXPECT_THAT(floats(index(x, {vector({0, -1}), vector({3, -4})})), ElementsAre(3, 8));
  EXPECT_THAT(floats(index(x, {vector({2})})), ElementsAre(8, 9, 10, 11));
  EXPECT_EQ(index(x, {integers({0, 1}, {2, 1}), vector({0, 1, 2})}).shape(), (Shape{2, 3}));
  const Tensor y = index_put(x, {vector({0, 0}), vector({1, 1})}, tensor({50, 60}));
  EXPECT_EQ(y.at({0, 1}), 60);
  const Tensor z = index_put(x, {vector({0, 0}), vector({1, 1})}, tensor({50, 60}), true);
  EXPECT_EQ(z.at({0, 1}), 111);
  EXPECT_EQ(x.at({0, 1}), 1);
}

TEST(Indexing, ChecksBeforeAnythingIsRead) {
  const Tensor x = counted({2, 2});
  EXPECT_THROW(index(x, {}), ValueError);
  EXPECT_THROW(index(x, {vector({2})}), IndexError);
  EXPECT_THROW(index(x, {tensor({1})}), TypeError);
  EXPECT_THROW(index_select(counted({}), 0, vector({0, 0})), ValueError);
}

TEST(Indexing, NonzeroAndMaskedSelect) {
  const Tensor x = tensor({0, 2, NAN, 0}).reshape({2, 2});
  EXPECT_EQ(nonzero(x).shape(), (Shape{2, 2}));
  EXPECT_THAT(ints(nonzero(x)), ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(nonzero(zeros({3})).shape(), (Shape{0, 1}));
  EXPECT_THAT(floats(masked_select(counted({2, 2}), gt(counted({2}), 0))), ElementsAre(1, 3));
}

TEST(Indexing, OneHot) {
  EXPECT_THAT(ints(one_hot(vector({1, 0}), 3)), ElementsAre(0, 1, 0, 1, 0, 0));
  EXPECT_EQ(one_hot(vector({1, 4})).shape(), (Shape{2, 5}));
}

TEST(Indexing, Triangles) {
  const Tensor x = ones({2, 3});
  EXPECT_THAT(floats(tril(x)), ElementsAre(1, 0, 0, 1, 1, 0));
  EXPECT_THAT(floats(tril(x, 1)), ElementsAre(1, 1, 0, 1, 1, 1));
  EXPECT_THAT(floats(triu(x)), ElementsAre(1, 1, 1, 0, 1, 1));
  EXPECT_THAT(floats(triu(x, -1)), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_THAT(floats(triu(x, std::numeric_limits<int64_t>::max())), ElementsAre(0, 0, 0, 0, 0, 0));
  // What is cleared may be infinite.
  EXPECT_THAT(floats(triu(full({2, 2}, INFINITY), 1)), ElementsAre(0, INFINITY, 0, 0));
}

TEST(Indexing, RollAndFlip) {
  const Tensor x = counted({2, 3});
  EXPECT_THAT(floats(roll(x, {1}, {1})), ElementsAre(2, 0, 1, 5, 3, 4));
  EXPECT_THAT(floats(roll(x, {-4}, {1})), ElementsAre(1, 2, 0, 4, 5, 3));
  EXPECT_THAT(floats(roll(x, {1})), ElementsAre(5, 0, 1, 2, 3, 4));
  EXPECT_THAT(floats(roll(x, {1, 1}, {0, 1})), ElementsAre(5, 3, 4, 2, 0, 1));
  EXPECT_EQ(roll(empty({0, 3}), {1}, {0}).shape(), (Shape{0, 3}));
  EXPECT_THAT(floats(flip(x.t(), {0})), ElementsAre(2, 5, 1, 4, 0, 3));
  EXPECT_THROW(roll(x, {1, 2}), ValueError);
  EXPECT_THROW(roll(x, {1, 2}, {0}), ValueError);
  EXPECT_THROW(roll(x, {1}, {2}), IndexError);
  EXPECT_THROW(roll(counted({}), {1}, {0}), IndexError);
}

TEST(Indexing, RollAndRepeatHaveGradients) {
  const Tensor x = counted({3});
  x.set_requires_grad();
  sum(mul(roll(x, {1}), tensor({1, 2, 3}))).backward();
  EXPECT_THAT(floats(x.grad()), ElementsAre(2, 3, 1));
  x.set_grad({});
  sum(mul(repeat(x, {2, 2}), counted({2, 6}))).backward();
  EXPECT_THAT(floats(x.grad()), ElementsAre(18, 22, 26));
  x.set_grad({});
  sum(mul(repeat_interleave(x, 2), counted({6}))).backward();
  EXPECT_THAT(floats(x.grad()), ElementsAre(1, 5, 9));
}

TEST(Indexing, Repeat) {
  const Tensor x = counted({2});
  EXPECT_THAT(floats(repeat(x, {3})), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_EQ(repeat(x, {2, 3}).shape(), (Shape{2, 6}));
  EXPECT_EQ(repeat(x, {0, 1}).shape(), (Shape{0, 2}));
  EXPECT_THAT(floats(repeat(counted({2, 1}), {1, 2})), ElementsAre(0, 0, 1, 1));
  EXPECT_THROW(repeat(counted({2, 1}), {2}), ValueError);
  EXPECT_THROW(repeat(x, {-1}), ValueError);
}

TEST(Indexing, RepeatInterleave) {
  const Tensor x = counted({2, 2});
  EXPECT_THAT(floats(repeat_interleave(x, 2, 0)), ElementsAre(0, 1, 0, 1, 2, 3, 2, 3));
  EXPECT_THAT(floats(repeat_interleave(x, 2, -1)), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  EXPECT_THAT(floats(repeat_interleave(x, vector({0, 2}), 1)), ElementsAre(1, 1, 3, 3));
  EXPECT_THAT(floats(repeat_interleave(x, vector({1, 0, 2, 0}))), ElementsAre(0, 2, 2));
  EXPECT_THROW(repeat_interleave(x, -1), ValueError);
  EXPECT_THROW(repeat_interleave(x, vector({1, -1}), 0), ValueError);
  EXPECT_THROW(repeat_interleave(x, vector({1}), 0), ValueError);
  EXPECT_THROW(repeat_interleave(x, tensor({1, 2}), 0), TypeError);
}

TEST(Indexing, SortIsStableAndPutsNanLast) {
  const Tensor x = tensor({2, NAN, 1, 2, 1});
  EXPECT_THAT(ints(sort(x).indices), ElementsAre(2, 4, 0, 3, 1));
  EXPECT_THAT(ints(sort(x, -1, true).indices), ElementsAre(1, 0, 3, 2, 4));
  EXPECT_THAT(ints(argsort(x)), ElementsAre(2, 4, 0, 3, 1));
  EXPECT_THAT(ints(topk(x, 2).indices), ElementsAre(1, 0));
  EXPECT_THAT(ints(topk(x, 2, 0, false).indices), ElementsAre(2, 4));
}

TEST(Indexing, Unique) {
  const UniqueResult result = unique(integers({3, 1, 3, 2, 1, 3}, {2, 3}));
  EXPECT_THAT(ints(result.values), ElementsAre(1, 2, 3));
  EXPECT_THAT(ints(result.inverse), ElementsAre(2, 0, 2, 1, 0, 2));
  EXPECT_EQ(result.inverse.shape(), (Shape{2, 3}));
  EXPECT_THAT(ints(result.counts), ElementsAre(2, 1, 3));
  EXPECT_THAT(ints(unique(empty({0})).counts), IsEmpty());
  // A NaN equals nothing, not even itself.
  EXPECT_EQ(unique(tensor({NAN, 1, NAN})).values.numel(), 3);
}

}  // namespace
}  // namespace tapestry
