#include "autograd/ops/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/inplace.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/autograd_meta.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using indexing::Ellipsis;
using indexing::None;
using indexing::Slice;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor vector_of(const std::vector<int64_t>& values) {
  const auto n = static_cast<int64_t>(values.size());
  return tensor(values, {n});
}

// The comments are the same in Python; values and shapes are those of PyTorch 1.13.
TEST(Index, IntegersRangesNoneAndEllipsisMakeViews) {
  const Tensor x = arange(24).view({2, 3, 4});
  EXPECT_EQ(x.index({1, 2, 3}).item(), 23);
  EXPECT_THAT(x.index({0, Slice(1, None), -1}).to_vector<int64_t>(), ElementsAre(7, 11));
  EXPECT_EQ(x.index({Ellipsis, Slice(None, None, 2)}).shape(), (Shape{2, 3, 2}));
  EXPECT_EQ(x.index({None, 1, Ellipsis, None}).shape(), (Shape{1, 3, 4, 1}));
  EXPECT_EQ(x.index({Slice(), Slice(-2, {}), Slice({}, -1)}).shape(), (Shape{2, 2, 3}));
  EXPECT_EQ(x.index({Slice(1, 1)}).shape(), (Shape{0, 3, 4}));
  EXPECT_EQ(x.index({}).shape(), x.shape());
  EXPECT_EQ(x.index({1, Slice(0, 2)}).raw(), x.data<int64_t>() + 12);  // not copied
}

TEST(Index, TensorsPickEntries) {
  const Tensor x = arange(24).view({2, 3, 4});
  const Tensor rows = vector_of({2, 0});
  // x[:, rows]: where the tensor stands
  EXPECT_EQ(x.index({Slice(), rows}).shape(), (Shape{2, 2, 4}));
  EXPECT_THAT(x.index({Slice(), rows, 0}).to_vector<int64_t>(), ElementsAre(8, 0, 20, 12));
  // x[:, rows, rows]: neighbours
  EXPECT_THAT(x.index({Slice(), rows, rows}).to_vector<int64_t>(), ElementsAre(10, 0, 22, 12));
  // x[[1, 0], :, rows]: not neighbours, so in front
  const Tensor apart = x.index({vector_of({1, 0}), Slice(), rows});
  EXPECT_EQ(apart.shape(), (Shape{2, 3}));
  EXPECT_THAT(apart.to_vector<int64_t>(), ElementsAre(14, 18, 22, 0, 4, 8));
  // x[:, rows[:, None], [1, 3, 0]]
  const Tensor grid = x.index({Slice(), rows.unsqueeze(1), vector_of({1, 3, 0})});
  EXPECT_EQ(grid.shape(), (Shape{2, 2, 3}));
  EXPECT_THAT(grid.index({0}).to_vector<int64_t>(), ElementsAre(9, 11, 8, 1, 3, 0));
  // Scalar tensors are numbers; negative entries count from the end.
  EXPECT_EQ(x.index({scalar(1, kInt64), Ellipsis, vector_of({-1})}).shape(), (Shape{3, 1}));
  EXPECT_EQ(x.index({-1, None, vector_of({0})}).shape(), (Shape{1, 1, 4}));
}

TEST(Index, MasksPickWhereTheyAreTrue) {
  const Tensor x = arange(6).view({2, 3});
  EXPECT_THAT(x.index({gt(x, 2.0)}).to_vector<int64_t>(), ElementsAre(3, 4, 5));
  const Tensor columns = tensor({1, 0, 1}).to(kBool);
  EXPECT_THAT(x.index({Slice(), columns}).to_vector<int64_t>(), ElementsAre(0, 2, 3, 5));
  EXPECT_THAT(x.index({1, columns}).to_vector<int64_t>(), ElementsAre(3, 5));
  EXPECT_EQ(x.index({zeros({2, 3}, kBool)}).shape(), Shape{0});
}

TEST(Index, GradientsGoToWhatWasPicked) {
  const Tensor x = arange(0, 24, 1, kFloat64).view({2, 3, 4}).clone();
  x.set_requires_grad();
  const Tensor rows = vector_of({2, 0, 2});
  const auto function = [&](const TensorList& in) {
    return TensorList{in[0].index({1, Slice(0, None, 2)}), in[0].index({Slice(), rows, 1}),
                      in[0].index({rows.select(0, 1), Ellipsis, rows}),
                      in[0].index({Ellipsis, gt(in[0].detach().select(0, 0).select(0, 0), 1.5)})};
  };
  EXPECT_TRUE(gradcheck(function, {x})) << gradcheck(function, {x}).message;
  EXPECT_TRUE(gradgradcheck(function, {x})) << gradgradcheck(function, {x}).message;
}

TEST(Index, AssignmentWritesInPlace) {
  const Tensor x = zeros({3, 4});
  const Tensor row = x.select(0, 1);
  const uint32_t version = x.version();
  x.index_put_({1, Slice(1, 3)}, 5.0);
  EXPECT_THAT(row.to_vector<float>(), ElementsAre(0, 5, 5, 0));  // views see it
  EXPECT_GT(x.version(), version);
  x.index_put_({Slice(), 0}, tensor({1, 2, 3}));
  x.index_put_({Slice(), 0}, tensor({1, 1, 1}), /*accumulate=*/true);
  EXPECT_THAT(x.index({Slice(), 0}).to_vector<float>(), ElementsAre(2, 3, 4));
  x.index_put_({gt(x, 4.0)}, -1.0);
  EXPECT_THAT(row.to_vector<float>(), ElementsAre(3, -1, -1, 0));
  // Repeated places add up, or the last one stays.
  const Tensor twice = vector_of({3, 3});
  x.index_put_({2, twice}, tensor({1, 10}), true);
  EXPECT_EQ(x.at({2, 3}), 11);
  x.index_put_({2, twice}, tensor({1, 10}));
  EXPECT_EQ(x.at({2, 3}), 10);
  // Values are converted.
  const Tensor n = arange(4);
  n.index_put_({Slice(0, 1)}, tensor({7.9F}));
  EXPECT_EQ(n.at({0}), 7);
}

TEST(Index, AssignmentIsRecorded) {
  const auto function = [](const TensorList& in) {
    const Tensor y = in[0] * 2;
    y.index_put_({1, Slice(0, 2)}, in[1]);
    y.index_put_({vector_of({0, 2})}, in[1].select(0, 0) * 3.0, true);
    y.index_put_({Slice(), 3}, 0.0);
    return TensorList{y * y};
  };
  const Tensor x = arange(0, 12, 1, kFloat64).view({3, 4}).clone();
  const Tensor values = tensor(std::vector<double>{0.5, -1}, {2});
  x.set_requires_grad();
  values.set_requires_grad();
  EXPECT_TRUE(gradcheck(function, {x, values})) << gradcheck(function, {x, values}).message;
  EXPECT_TRUE(gradgradcheck(function, {x, values}));
  // A tensor without history gets one from the values.
  const Tensor plain = zeros({3}, kFloat64);
  plain.index_put_({Slice(0, 2)}, values);
  EXPECT_TRUE(plain.requires_grad());
  const Tensor gradient = grad(sum(plain * plain), {values})[0];
  EXPECT_THAT(gradient.to_vector<double>(), ElementsAre(1, -2));
  // What backward needs is protected.
  const Tensor y = values * 1;
  const Tensor squares = square(y);
  {
    const NoGradGuard guard;
    y.index_put_({0}, 9.0);
  }
  EXPECT_THAT(message_of<RuntimeError>([&] { sum(squares).backward(); }),
              HasSubstr("changed in place"));
}

TEST(Index, MistakesAreNamed) {
  const Tensor x = zeros({2, 3});
  EXPECT_THAT(message_of<IndexError>([&] {
                x.index({0, 0, 0});
              }),
              Says("index: 3 indices ... [2, 3]"));
  EXPECT_THAT(message_of<IndexError>([&] {
                x.index({Ellipsis, Ellipsis});
              }),
              HasSubstr("more than one Ellipsis"));
  EXPECT_THAT(message_of<IndexError>([&] { x.index({2}); }), HasSubstr("index 2"));
  EXPECT_THAT(message_of<IndexError>([&] { x.index({zeros({3}, kBool)}); }),
              HasSubstr("the mask [3] does not fit axes from 0 of [2, 3]"));
  EXPECT_THAT(message_of<TypeError>([&] { x.index({zeros({2})}); }), HasSubstr("float32 [2]"));
  EXPECT_THAT(message_of<TypeError>([&] { x.index({zeros({}, kBool)}); }),
              HasSubstr("at least one axis"));
  EXPECT_THAT(message_of<ValueError>([&] { x.index({Slice(0, 2, -1)}); }), HasSubstr("step"));
  EXPECT_THAT(message_of<IndexError>([&] { x.index({vector_of({2})}); }), HasSubstr("2"));
  EXPECT_THAT(message_of<ValueError>([&] { x.index_put_({0}, zeros({2})); }),
              HasSubstr("values [2] do not broadcast to [3]: axis -1 has 2, not 3 or 1"));
  EXPECT_THAT(message_of<ValueError>([&] {
                x.index_put_({0}, zeros({2, 3}));
              }),
              HasSubstr("values [2, 3] do not broadcast to [3], which has fewer axes"));
  const Tensor mask = eq(x, 1.0);
  EXPECT_THAT(message_of<ValueError>([&] { x.index_put_({mask}, zeros({2})); }),
              HasSubstr("do not broadcast to [0]"));
}

TEST(Index, ValuesMayHaveFurtherAxesOfOneInFront) {
  const Tensor x = zeros({2, 3});
  x.index_put_({0}, tensor({1, 2, 3}).view({1, 1, 3}));
  x.index_put_({1, Slice(0, 2)}, tensor({4}).view({1, 1, 1, 1}), /*accumulate=*/true);
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(1, 2, 3, 4, 4, 0));
  x.index_put_({vector_of({1, 0})}, tensor({5, 6, 7}).view({1, 1, 1, 3}));
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(5, 6, 7, 5, 6, 7));
  x.index_put_({gt(x, 6.0)}, tensor({8, 9}).view({1, 2}));
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(5, 6, 8, 5, 6, 9));
  // The gradient has the values' own shape, whether x is recorded by slices or by indices.
  const Tensor values = tensor({1, 2, 3}).view({1, 1, 3}).detach().set_requires_grad();
  const Tensor weights = arange(0, 6, 1, kFloat32).view({2, 3});
  sum(zeros({2, 3}).index_put_({1}, values) * weights).backward();
  EXPECT_EQ(values.grad().shape(), (Shape{1, 1, 3}));
  EXPECT_THAT(values.grad().to_vector<float>(), ElementsAre(3, 4, 5));
  sum(zeros({2, 3}).index_put_({vector_of({0})}, values) * weights).backward();
  EXPECT_THAT(values.grad().to_vector<float>(), ElementsAre(3, 5, 7));
}

TEST(InPlaceOperators, ChangeTheTensorBehindTheHandle) {
  const Tensor x = tensor({1, 2, 4});
  const TensorList same = {x};
  x += tensor({1, 1, 1});
  x *= 3;
  x -= 1;
  (x /= tensor({1, 2, 2})) += 0.5;
  EXPECT_THAT(same[0].to_vector<float>(), ElementsAre(5.5, 4.5, 7.5));
  EXPECT_EQ(x.version(), 5U);
  const Tensor leaf = tensor({1, 2});
  leaf.set_requires_grad();
  EXPECT_THAT(message_of<RuntimeError>([&] { leaf += 1; }), HasSubstr("is a leaf"));
  const Tensor y = leaf * 2;
  y += leaf;
  y *= 5;
  sum(y).backward();
  EXPECT_THAT(leaf.grad().to_vector<float>(), ElementsAre(15, 15));
}

TEST(Split, AnyNumberOfPartsIsOneNode) {
  const Tensor x = arange(0, 1000, 1, kFloat64).clone();
  x.set_requires_grad();
  const TensorList parts = split(x, 1);
  ASSERT_EQ(parts.size(), 1000U);
  EXPECT_EQ(parts[7].raw(), x.data<double>() + 7);
  // One node for all parts, so backward joins them once.
  EXPECT_EQ(grad_fn(parts[0]), grad_fn(parts[999]));
  Tensor total = scalar(0, kFloat64);
  for (size_t i = 0; i < parts.size(); i += 2) {
    total = total + sum(parts[i]) * static_cast<double>(i);
  }
  total.backward();
  EXPECT_EQ(x.grad().at({998}), 998);
  EXPECT_EQ(x.grad().at({999}), 0);
  const std::vector<int64_t> sizes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  EXPECT_EQ(split(zeros({2, 78}), sizes, 1).back().shape(), (Shape{2, 12}));
}

TEST(Split, ChunkAndFlatten) {
  EXPECT_EQ(chunk(zeros({10, 2}), 4).size(), 4U);  // 3, 3, 3, 1
  EXPECT_EQ(chunk(zeros({10, 2}), 4).back().shape(), (Shape{1, 2}));
  EXPECT_EQ(chunk(zeros({2, 5}), 4, -1).size(), 3U);  // 2, 2, 1, as PyTorch
  EXPECT_EQ(chunk(zeros({0, 2}), 3).size(), 1U);
  EXPECT_THAT(message_of<ValueError>([] { chunk(zeros({2}), 0); }), HasSubstr("at least 1"));
  const Tensor x = zeros({2, 3, 4, 5});
  EXPECT_EQ(flatten(x).shape(), Shape{120});
  EXPECT_EQ(flatten(x, 1, 2).shape(), (Shape{2, 12, 5}));
  EXPECT_EQ(flatten(x, 1).raw(), x.raw());
  EXPECT_EQ(flatten(x, -2, -2).shape(), x.shape());
  EXPECT_EQ(flatten(scalar(1)).shape(), Shape{1});
  EXPECT_THAT(message_of<ValueError>([&] { flatten(x, 2, 1); }), HasSubstr("lies behind"));
}

}  // namespace
}  // namespace tapestry
