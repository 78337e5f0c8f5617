#include "autograd/ops/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor numbers(const Shape& shape, DType dtype = kFloat64) {
  // 1, 2, ..., with a sign that alternates in threes.
  const Tensor n = arange(1, static_cast<double>(shape.numel()) + 1, 1, kFloat64);
  const Tensor sign = arange(0, static_cast<double>(shape.numel()), 1, kFloat64);
  return mul(n, sub(1, mul(floor(div(sub(sign, mul(floor(div(sign, 3)), 3)), 2)), 2)))
      .reshape(shape)
      .to(dtype);
}

// The definition.
Tensor product(const Tensor& a, const Tensor& b) {
  return sum(mul(unsqueeze(a, -1), unsqueeze(b, -3)), {-2});
}

void expect_same(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  EXPECT_EQ(a.to_vector<double>(), b.to_vector<double>());
}

TEST(Matmul, EveryLayoutOfTheOperands) {
  // All 24 orders of storage for both operands of a product with two batch axes.
  Shape order{0, 1, 2, 3};
  const Tensor a = numbers({2, 3, 4, 5});
  const Tensor b = numbers({2, 3, 5, 2});
  const Tensor expected = product(a, b);
  do {
    Shape inverse = order;
    for (int64_t i = 0; i < 4; ++i) {
      inverse[order[i]] = i;
    }
    expect_same(matmul(clone(a.permute(order)).permute(inverse), b), expected);
    expect_same(matmul(a, clone(b.permute(order)).permute(inverse)), expected);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Matmul, SharedOperandsInEveryLayout) {
  Shape order{0, 1, 2};
  const Tensor a = numbers({3, 4, 5});
  const Tensor b = numbers({5, 2});
  do {
    Shape inverse = order;
    for (int64_t i = 0; i < 3; ++i) {
      inverse[order[i]] = i;
    }
    const Tensor other = clone(a.permute(order)).permute(inverse);
    expect_same(matmul(other, b), product(a, b));
    expect_same(matmul(other, clone(b.t()).t()), product(a, b));
    expect_same(matmul(numbers({2, 4}), other), product(numbers({2, 4}), a));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Matmul, RowsOfOneElementAndOneRow) {
  for (const Shape& shape : {Shape{4, 1, 3}, Shape{4, 3, 1}, Shape{4, 1, 1}, Shape{1, 4, 3}}) {
    const Tensor a = numbers(shape);
    const Tensor b = numbers({shape.back(), 2});
    expect_same(matmul(a, b), product(a, b));
    const Tensor stored = clone(a.permute({2, 1, 0})).permute({2, 1, 0});
    expect_same(matmul(stored, b), product(a, b));
    const Tensor rolled = clone(a.permute({1, 2, 0})).permute({2, 0, 1});
    expect_same(matmul(rolled, b), product(a, b));
  }
}

TEST(Matmul, ExpandedStridedAndOverlappingOperands) {
  const Tensor row = numbers({1, 5});
  expect_same(matmul(row.expand({3, 5}), numbers({5, 2})),
              product(clone(row.expand({3, 5})), numbers({5, 2})));
  const Tensor wide = numbers({4, 10});
  expect_same(matmul(slice(wide, 1, 0, 10, 2), numbers({5, 2})),
              product(clone(slice(wide, 1, 0, 10, 2)), numbers({5, 2})));
  expect_same(matmul(slice(wide, 1, 2, 7), numbers({5, 2})),
              product(clone(slice(wide, 1, 2, 7)), numbers({5, 2})));
  // Windows on one vector: rows overlap.
  const Tensor windows = alias(numbers({6}), {3, 4}, {1, 1}, 0);
  expect_same(matmul(windows, numbers({4, 2})), product(clone(windows), numbers({4, 2})));
  expect_same(matmul(windows.t(), numbers({3, 2})), product(clone(windows.t()), numbers({3, 2})));
  const Tensor batch = numbers({1, 4, 5}).expand({3, 4, 5});
  expect_same(matmul(batch, numbers({3, 5, 2})), product(clone(batch), numbers({3, 5, 2})));
}

TEST(Matmul, Integers) {
  const Tensor a = tensor(std::vector<int64_t>{1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(matmul(a, a).dtype(), kInt64);
  EXPECT_THAT(matmul(a, a).to_vector<int64_t>(), ElementsAre(7, 10, 15, 22));
  EXPECT_THAT(matmul(a.to(kInt32), a.t().to(kInt32)).to_vector<int32_t>(),
              ElementsAre(5, 11, 11, 25));
}

TEST(Matmul, VectorsAndOuter) {
  EXPECT_EQ(matmul(tensor({1, 2, 3}), tensor({4, 5, 6})).shape(), Shape{});
  EXPECT_EQ(dot(tensor({1, 2, 3}), tensor({4, 5, 6})).item(), 32);
  EXPECT_THAT(outer(tensor({1, 2}), tensor({3, 4})).to_vector<float>(), ElementsAre(3, 4, 6, 8));
  EXPECT_EQ(matmul(ones({3}), ones({2, 3, 4})).shape(), (Shape{2, 4}));
  EXPECT_EQ(matmul(ones({2, 4, 3}), ones({3})).shape(), (Shape{2, 4}));
}

TEST(Matmul, SumsOfNothingAreZero) {
  EXPECT_THAT(matmul(empty({2, 0}), empty({0, 2})).to_vector<float>(), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(linear(empty({1, 0}), empty({2, 0}), tensor({3, 4})).to_vector<float>(),
              ElementsAre(3, 4));
}

TEST(Matmul, HalvesAreRoundedOnce) {
  // 1 + 2^-8 + 2^-8: every partial sum in bfloat16 would stay at 1.
  const Tensor x = tensor({1, 0.00390625, 0.00390625}).to(kBFloat16).reshape({1, 3});
  const Tensor w = ones({1, 3}, kBFloat16);
  EXPECT_EQ(matmul(x, w.t()).item(), 1.0078125);
  EXPECT_EQ(matmul(x, w.t()).dtype(), kBFloat16);
  const Tensor small = tensor({0.00390625, 0.00390625}).to(kBFloat16).reshape({1, 2});
  EXPECT_EQ(linear(small, ones({1, 2}, kBFloat16), ones({1}, kBFloat16)).item(), 1.0078125);
}

TEST(Linear, KeepsOnlyWhatTheGradientsNeed) {
  const Tensor x = numbers({4, 3});
  const Tensor weight = numbers({2, 3});
  const Tensor bias = numbers({2});
  bias.set_requires_grad();
  const Tensor y = linear(x, weight, bias);
  x.bump_version();  // neither is saved
  weight.bump_version();
  sum(y).backward();
  EXPECT_THAT(bias.grad().to_vector<double>(), ElementsAre(4, 4));
}

TEST(Linear, AWeightOfOneAxisIsARow) {
  const Tensor x = tensor({1, 2, 3, 4, 5, 6}).view({2, 3}).set_requires_grad();
  const Tensor weight = tensor({1, 0, -2}).set_requires_grad();
  const Tensor bias = scalar(0.5).set_requires_grad();
  const Tensor y = linear(x, weight, bias);
  EXPECT_EQ(y.shape(), (Shape{2}));
  EXPECT_THAT(y.to_vector<float>(), ::testing::ElementsAre(-4.5, -7.5));
  sum(y * tensor({1, 2})).backward();
  EXPECT_THAT(x.grad().to_vector<float>(), ::testing::ElementsAre(1, 0, -2, 2, 0, -4));
  EXPECT_THAT(weight.grad().to_vector<float>(), ::testing::ElementsAre(9, 12, 15));
  EXPECT_EQ(bias.grad().item(), 3);
  EXPECT_EQ(linear(tensor({1, 2, 3}), weight.detach()).shape(), Shape{});
  EXPECT_THROW(linear(x, weight, tensor({1})), ValueError);
  EXPECT_THROW(linear(x, tensor({1, 2})), ValueError);
}

TEST(Linear, GradientsHaveTheShapesOfTheInputs) {
  const Tensor x = numbers({2, 4, 3});
  const Tensor weight = numbers({5, 3});
  const Tensor bias = numbers({5});
  for (const Tensor& t : {x, weight, bias}) {
    t.set_requires_grad();
  }
  sum(linear(x, weight, bias)).backward();
  EXPECT_EQ(x.grad().shape(), x.shape());
  EXPECT_EQ(weight.grad().shape(), weight.shape());
  expect_same(bias.grad(), full({5}, 8, kFloat64));
}

// float32 values that bfloat16 cannot hold.
Tensor unround(const Shape& shape) { return (numbers(shape, kFloat32) * 0.1).clone(); }

TEST(LinearMixed, EqualsTheProductOfRoundedOperands) {
  const Tensor x = unround({4, 6}).to(kBFloat16).set_requires_grad();
  const Tensor weight = unround({3, 6}).set_requires_grad();
  const Tensor bias = unround({3}).set_requires_grad();
  const Tensor dy = unround({4, 3}).to(kBFloat16);
  const Tensor y = linear(x, weight, bias);
  EXPECT_EQ(y.dtype(), kBFloat16);
  y.backward(dy);

  const auto exact = [](const Tensor& t) { return t.to(kBFloat16).to(kFloat64); };
  const Tensor wide = matmul(exact(x), exact(weight).t()) + exact(bias);
  EXPECT_THAT(y.to_vector<float>(),
              ::testing::Pointwise(::testing::FloatEq(), wide.to(kBFloat16).to_vector<float>()));
  EXPECT_EQ(x.grad().dtype(), kBFloat16);
  expect_same(x.grad(), matmul(exact(dy), exact(weight)).to(kBFloat16));
  // Not rounded to 16 bits on the way into float32.
  EXPECT_EQ(weight.grad().dtype(), kFloat32);
  EXPECT_THAT(weight.grad().to_vector<float>(),
              ::testing::Pointwise(::testing::FloatNear(1e-5F),
                                   matmul(exact(dy).t(), exact(x)).to_vector<float>()));
  EXPECT_EQ(bias.grad().dtype(), kFloat32);
  EXPECT_THAT(
      bias.grad().to_vector<float>(),
      ::testing::Pointwise(::testing::FloatNear(1e-5F), sum(exact(dy), {0}).to_vector<float>()));
}

TEST(LinearMixed, UsesTheGivenCopyAndTheMainGradient) {
  const Tensor x = unround({4, 6}).to(kBFloat16).set_requires_grad();
  const Tensor weight = unround({3, 6}).set_requires_grad();
  weight.set_main_grad(full({3, 6}, 1));
  const Tensor copy = weight.detach().to(kBFloat16);
  const Tensor dy = unround({4, 3}).to(kBFloat16);
  linear(x, weight, {}, copy).backward(dy);
  const Tensor expected = matmul(dy.to(kFloat64).t(), x.detach().to(kFloat64)) + 1;
  EXPECT_THAT(weight.main_grad().to_vector<float>(),
              ::testing::Pointwise(::testing::FloatNear(1e-5F), expected.to_vector<float>()));

  EXPECT_THROW(linear(x, weight, {}, weight), TypeError);
  EXPECT_THROW(linear(x, weight, {}, copy.t()), ValueError);
  EXPECT_THROW(linear(x.to(kFloat32), weight, {}, copy), TypeError);
  EXPECT_THROW(linear(x.to(kFloat64), weight), TypeError);
}

TEST(LinearMixed, ABiasMayBeFloat32BesideA16BitWeight) {
  const Tensor x = unround({5, 3}).to(kBFloat16);
  const Tensor weight = unround({2, 3}).to(kBFloat16);
  const Tensor whole = weight.to(kFloat32).set_requires_grad();
  weight.set_requires_grad();
  const Tensor bias = tensor({0.3F, -1.7F}).set_requires_grad();
  const Tensor y = linear(x, weight, bias);
  const Tensor expected = linear(x, whole, bias);
  EXPECT_EQ(y.to(kFloat32).to_vector<float>(), expected.to(kFloat32).to_vector<float>());
  const Tensor dy = unround({5, 2}).to(kBFloat16);
  const TensorList d = grad(y, {weight, bias}, dy);
  const TensorList de = grad(expected, {whole, bias}, dy);
  EXPECT_EQ(d[0].dtype(), kBFloat16);
  EXPECT_EQ(d[0].to(kFloat32).to_vector<float>(),
            de[0].to(kBFloat16).to(kFloat32).to_vector<float>());
  EXPECT_EQ(d[1].dtype(), kFloat32);
  EXPECT_EQ(d[1].to_vector<float>(), de[1].to_vector<float>());
}

TEST(Linear, MakesItsInputAgainInsteadOfKeepingIt) {
  const Tensor z = numbers({64, 32}).set_requires_grad();
  const Tensor weight = numbers({8, 32}).set_requires_grad();
  const auto activate = [&] { return square(z); };
  const TensorList kept = grad(sum(linear(activate(), weight)), {z, weight});
  const int64_t before = memory_stats().current_bytes;
  int calls = 0;
  const auto again = [&] {
    ++calls;
    return activate();
  };
  const Tensor y = linear(activate(), weight, {}, {}, again);
  EXPECT_LE(memory_stats().current_bytes - before, 64 * 8 * 8);
  EXPECT_EQ(calls, 0);
  const TensorList made = grad(sum(y), {z, weight});
  EXPECT_EQ(calls, 1);
  expect_same(made[0], kept[0]);
  expect_same(made[1], kept[1]);

  // It is part of the graph of gradients of gradients.
  const auto second = [&](std::function<Tensor()> recompute) {
    const Tensor out = linear(activate(), weight, {}, {}, std::move(recompute));
    const TensorList first = grad(sum(square(out)), {weight}, {}, {.create_graph = true});
    return grad(sum(first[0]), {z})[0];
  };
  expect_same(second(activate), second(nullptr));
  const Tensor wrong = linear(activate(), weight, {}, {}, [&] { return z.to(kFloat32); });
  EXPECT_THROW(sum(wrong).backward(), ValueError);
}

TEST(LinearMixed, AWeightChangedInPlaceIsNoticed) {
  const Tensor x = unround({4, 6}).to(kBFloat16).set_requires_grad();
  const Tensor weight = unround({3, 6}).set_requires_grad();
  const Tensor y = linear(x, weight, {}, weight.detach().to(kBFloat16));
  weight.bump_version();
  EXPECT_THROW(sum(y).backward(), RuntimeError);
}

TEST(LinearMixed, SecondDerivativesReachTheWeight) {
  const Tensor x = unround({2, 3}).to(kBFloat16).set_requires_grad();
  const Tensor weight = unround({2, 3}).set_requires_grad();
  const TensorList first = grad(sum(square(linear(x, weight))), {x}, {}, {.create_graph = true});
  const TensorList second = grad(sum(first[0]), {weight});
  EXPECT_EQ(second[0].dtype(), kFloat32);
  EXPECT_GT(sum(abs(second[0])).item(), 0);
}

TEST(Einsum, ImplicitResultIsAlphabetical) {
  const Tensor a = numbers({2, 3});
  const Tensor b = numbers({3, 4});
  expect_same(einsum("ij,jk", {a, b}), product(a, b));
  expect_same(einsum("ba", {a}), a.t());
  expect_same(einsum("zj,ja", {a, b}), clone(product(a, b).t()));
}

TEST(Einsum, OneOperand) {
  const Tensor a = numbers({3, 3});
  EXPECT_EQ(einsum("ii", {a}).item(), a.at({0, 0}) + a.at({1, 1}) + a.at({2, 2}));
  EXPECT_THAT(einsum("ii->i", {a}).to_vector<double>(),
              ElementsAre(a.at({0, 0}), a.at({1, 1}), a.at({2, 2})));
  expect_same(einsum("ij->j", {a}), sum(a, {0}));
  expect_same(einsum("ij->", {a}), sum(a));
  const Tensor cube = numbers({2, 2, 2});
  EXPECT_EQ(einsum("iii->", {cube}).item(), cube.at({0, 0, 0}) + cube.at({1, 1, 1}));
}

TEST(Einsum, KeepsIntegers) {
  const Tensor a = tensor(std::vector<int32_t>{1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(einsum("ij,jk->i", {a, a}).dtype(), kInt32);
  EXPECT_THAT(einsum("ij,jk->i", {a, a}).to_vector<int32_t>(), ElementsAre(17, 37));
}

TEST(Einsum, SaysWhatIsWrong) {
  const auto message = [](std::string_view equation, const TensorList& operands) {
    try {
      einsum(equation, operands);
    } catch (const ValueError& e) {
      return std::string(e.what());
    }
    return std::string("no ValueError");
  };
  const Tensor a = ones({2, 3});
  EXPECT_THAT(message("ij,jk->ik", {a}), HasSubstr("names 2 operands, got 1"));
  EXPECT_THAT(message("ijk->i", {a}), HasSubstr("'ijk' names 3 axes, operand 0 is float32 [2, 3]"));
  EXPECT_THAT(message("ij,jk->ik", {a, a}), HasSubstr("'j' is 3 and, in operand 1, 2"));
  EXPECT_THAT(message("ii->i", {a}), HasSubstr("'i' is 2 and, in operand 0, 3"));
  EXPECT_THAT(message("ij->ik", {a}), Says("'k' ... is in no operand"));
  EXPECT_THAT(message("ij->ii", {a}), HasSubstr("'i' is twice in the result"));
  EXPECT_THAT(message("...j->j", {a}), HasSubstr("unexpected '.'"));
}

}  // namespace
}  // namespace tapestry
