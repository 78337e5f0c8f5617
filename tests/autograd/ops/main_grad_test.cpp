// Ops that add their gradient straight into a leaf's main_grad.
#include "autograd/tape/main_grad.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {
namespace {

using ::testing::ElementsAreArray;
using ::testing::Pointwise;

Tensor filled(const Shape& shape, double start) {
  return (arange(0, static_cast<double>(shape.numel()), 1, kFloat32) * 0.1 + start).reshape(shape);
}

Tensor leaf(const Shape& shape, double start) {
  return filled(shape, start).clone().set_requires_grad();
}

MATCHER(Close, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) < 1e-4; }

// Loss of a tied model in small: table lookup, two uses of one weight, the table again as head.
Tensor tied_loss(const Tensor& table, const Tensor& weight) {
  const Tensor ids = tensor(std::vector<int64_t>{2, 0, 2, 1}, {4});
  const Tensor hidden = linear(linear(embedding(table, ids), weight), weight);
  return sum(square(linear(hidden, table)));
}

TEST(MainGrad, AccumulatesWhatGradWouldHold) {
  const Tensor table = leaf({3, 2}, -0.2);
  const Tensor weight = leaf({2, 2}, 0.3);
  tied_loss(table, weight).backward();
  const std::vector<float> expected_table = table.grad().to_vector<float>();
  const std::vector<float> expected_weight = weight.grad().to_vector<float>();

  const Tensor table_again = leaf({3, 2}, -0.2);
  const Tensor weight_again = leaf({2, 2}, 0.3);
  table_again.set_main_grad(full({3, 2}, 1));
  weight_again.set_main_grad(full({2, 2}, 1));
  int table_hooks = 0;
  table_again.register_post_accumulate_grad_hook([&](const Tensor&) { ++table_hooks; });
  tied_loss(table_again, weight_again).backward();
  EXPECT_EQ(table_hooks, 1);
  EXPECT_THAT((table_again.main_grad() - 1).to_vector<float>(), Pointwise(Close(), expected_table));
  EXPECT_THAT((weight_again.main_grad() - 1).to_vector<float>(),
              Pointwise(Close(), expected_weight));
}

TEST(MainGrad, TwoPassesAddUp) {
  const Tensor weight = leaf({2, 3}, 0.5);
  weight.set_main_grad(zeros({2, 3}));
  const Tensor x = filled({4, 3}, 1);
  sum(linear(x, weight)).backward();
  const std::vector<float> once = weight.main_grad().to_vector<float>();
  sum(linear(x, weight)).backward();
  EXPECT_THAT((weight.main_grad() * 0.5).to_vector<float>(), Pointwise(Close(), once));
}

TEST(MainGrad, AHookSeesTheGradientOfItsPass) {
  const Tensor weight = leaf({2, 3}, 0.5);
  weight.set_main_grad(full({2, 3}, 7));
  const Tensor x = filled({4, 3}, 1);
  std::vector<float> seen;
  weight.register_hook([&](const Tensor& gradient) {
    seen = gradient.to_vector<float>();
    return Tensor();
  });
  sum(linear(x, weight)).backward();
  EXPECT_THAT((weight.main_grad() - 7).to_vector<float>(), Pointwise(Close(), seen));
}

TEST(MainGrad, GradAndCreateGraphLeaveItAlone) {
  const Tensor weight = leaf({2, 3}, 0.5);
  weight.set_main_grad(zeros({2, 3}));
  const Tensor x = filled({4, 3}, 1);
  const std::vector<float> untouched = weight.main_grad().to_vector<float>();
  const Tensor loss = sum(square(linear(x, weight)));
  const TensorList first = grad(loss, {weight}, {}, {.create_graph = true});
  const TensorList second = grad(sum(square(first[0])), {weight});
  EXPECT_TRUE(second[0].defined());
  EXPECT_THAT(weight.main_grad().to_vector<float>(), ElementsAreArray(untouched));
}

Tensor garbage(const Shape& shape) { return full(shape, std::nan("")); }

TEST(FreshMainGrad, HasTheBitsOfAddingToZeros) {
  const auto gradients = [](bool fresh) {
    const Tensor table = leaf({3, 2}, -0.2);
    const Tensor weight = leaf({2, 2}, 0.3);
    const Tensor scale = leaf({2}, 1.5);  // its gradient comes through AccumulateGrad
    TensorList found;
    for (const Tensor& t : {table, weight, scale}) {
      t.set_main_grad(fresh ? garbage(t.shape()) : zeros(t.shape()));
      if (fresh) {
        reset_main_grad(t);
      }
    }
    for (int pass = 0; pass < 2; ++pass) {
      (tied_loss(table, weight) + sum(square(scale))).backward();
    }
    return std::vector<std::vector<float>>{table.grad().to_vector<float>(),
                                           weight.grad().to_vector<float>(),
                                           scale.grad().to_vector<float>()};
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST(FreshMainGrad, ARowThatNoIdNamesIsZero) {
  const Tensor table = leaf({4, 2}, 1);
  table.set_main_grad(garbage({4, 2}));
  reset_main_grad(table);
  sum(embedding(table, tensor(std::vector<int64_t>{2, 2}, {2}))).backward();
  EXPECT_THAT(table.grad().to_vector<float>(), ElementsAreArray({0, 0, 0, 0, 2, 2, 0, 0}));
}

TEST(FreshMainGrad, ReadsAsZeroWithoutContributions) {
  const Tensor a = leaf({3}, 1);
  a.set_main_grad(garbage({3}));
  reset_main_grad(a);
  EXPECT_THAT(a.grad().to_vector<float>(), ElementsAreArray({0, 0, 0}));
  sum(a).backward();  // added to the zeros that were read
  EXPECT_THAT(a.main_grad().to_vector<float>(), ElementsAreArray({1, 1, 1}));
}

TEST(FreshMainGrad, NeedsAMainGrad) {
  EXPECT_THROW(reset_main_grad(leaf({2}, 1)), RuntimeError);
  EXPECT_THROW(reset_main_grad(Tensor()), RuntimeError);
}

TEST(MainGrad, RefusesBuffersThatDoNotFit) {
  const Tensor a = leaf({2, 3}, 1);
  EXPECT_THROW(a.set_main_grad(zeros({3, 2})), ValueError);
  EXPECT_THROW(a.set_main_grad(zeros({3, 2}).t()), ValueError);
  EXPECT_THROW(a.set_main_grad(zeros({2, 3}, kFloat16)), TypeError);
}

// Many contributions, each too small to change the sum if it were rounded to nearest.
TEST(BFloat16MainGrad, SmallContributionsAreNotLost) {
  const Tensor a = leaf({4096}, 1);
  a.set_main_grad(zeros({4096}, kBFloat16));
  reset_main_grad(a, {3, 4, 0});
  const auto mean_of = [&] { return sum(a.main_grad().to(kFloat32)).item() / 4096; };
  sum(a).backward();
  EXPECT_EQ(mean_of(), 1);
  const auto add = [&] {
    for (int i = 0; i < 64; ++i) {
      sum(a * (1.0 / 1024)).backward();
    }
  };
  add();
  EXPECT_NEAR(mean_of(), 1 + 64.0 / 1024, 2e-3);
  const std::vector<float> first = a.main_grad().to(kFloat32).to_vector<float>();
  reset_main_grad(a, {3, 4, 0});  // the same numbers again
  sum(a).backward();
  add();
  EXPECT_EQ(a.main_grad().to(kFloat32).to_vector<float>(), first);
}

// A leaf that is the second half of something is rounded as that half.
TEST(BFloat16MainGrad, TakesTheNumbersThatItIsGiven) {
  const auto summed = [](int64_t size, int64_t first) {
    const Tensor a = leaf({size}, 1);
    a.set_main_grad(zeros({size}, kBFloat16));
    number_main_grad(a, {{.stream = 9, .first = first}});
    reset_main_grad(a, {3, 4, 0});
    for (int i = 0; i < 4; ++i) {
      sum(a * (i == 0 ? 1.0 : 1.0 / 512)).backward();
    }
    return a.main_grad().to(kFloat32).to_vector<float>();
  };
  const std::vector<float> whole = summed(2000, 0);
  EXPECT_EQ(summed(999, 1001), std::vector<float>(whole.begin() + 1001, whole.end()));
  EXPECT_NE(summed(999, 0), summed(999, 1001));
  EXPECT_THROW(number_main_grad(leaf({2}, 1), {{.stream = 9}}), RuntimeError);
  const Tensor b = leaf({2}, 1);
  b.set_main_grad(zeros({2}, kBFloat16));
  EXPECT_THROW(number_main_grad(b, {}), ValueError);
}

// The weight's own dtype does not matter: sums go into main_grad as float32.
TEST(BFloat16MainGrad, OfA16BitWeightIsThatOfAFloat32One) {
  const auto gradient = [](DType dtype) {
    const Tensor weight = filled({2, 3}, 0.5).to(dtype).set_requires_grad();
    weight.set_main_grad(zeros({2, 3}, kBFloat16));
    reset_main_grad(weight, {1, 2, 0});
    const Tensor x = filled({40, 3}, 1.37).to(kBFloat16);
    for (int pass = 0; pass < 3; ++pass) {
      sum(square(linear(x, weight).to(kFloat32))).backward();
    }
    return weight.grad().to(kFloat32).to_vector<float>();
  };
  EXPECT_EQ(gradient(kBFloat16), gradient(kFloat32));
}

TEST(BFloat16MainGrad, TakesTheFirstContributionRoundedToNearest) {
  const Tensor weight = leaf({2, 3}, 0.5);
  weight.set_main_grad(zeros({2, 3}, kBFloat16));
  reset_main_grad(weight);
  const Tensor x = filled({4, 3}, 1.37);
  sum(linear(x, weight)).backward();
  const Tensor plain = leaf({2, 3}, 0.5);
  sum(linear(x, plain)).backward();
  EXPECT_EQ(weight.grad().to(kFloat32).to_vector<float>(),
            plain.grad().to(kBFloat16).to(kFloat32).to_vector<float>());
}

int64_t gradient_bytes() {
  return memory_stats().current_by_kind[static_cast<size_t>(MemoryKind::kGradient)];
}

TEST(ReleasedMainGrad, ComesBackWithTheFirstContribution) {
  const Tensor weight = leaf({2, 3}, 0.5);
  attach_main_grad(weight, kFloat32);
  const Tensor x = filled({4, 3}, 1);
  EXPECT_EQ(gradient_bytes(), 0);
  sum(linear(x, weight)).backward();
  EXPECT_EQ(gradient_bytes(), 64);
  const std::vector<float> once = weight.grad().to_vector<float>();
  sum(linear(x, weight)).backward();
  EXPECT_THAT((weight.grad() * 0.5).to_vector<float>(), Pointwise(Close(), once));
  release_main_grad(weight);
  EXPECT_EQ(gradient_bytes(), 0);
  sum(linear(x, weight)).backward();
  EXPECT_THAT(weight.main_grad().to_vector<float>(), ElementsAreArray(once));
  release_main_grad(weight);
  EXPECT_THAT(weight.grad().to_vector<float>(), ElementsAreArray(std::vector<float>(6, 0)));
}

TEST(ReleasedMainGrad, TakesAGradientOver) {
  const Tensor weight = leaf({2, 3}, 0.5);
  const Tensor hidden = filled({4, 3}, -0.2);
  const Tensor labels = tensor(std::vector<int64_t>{0, 1, 1, 0}, {4});
  const auto gradient_after = [&](int passes) {
    for (int i = 0; i < passes; ++i) {
      (linear_cross_entropy(hidden, weight, labels) * 3.0).backward();
    }
    return weight.grad().to_vector<float>();
  };
  weight.set_main_grad(zeros({2, 3}));
  const std::vector<float> expected = gradient_after(2);
  weight.set_main_grad({});
  attach_main_grad(weight, kFloat32);
  EXPECT_THAT(gradient_after(2), ElementsAreArray(expected));
  EXPECT_EQ(gradient_bytes(), 64) << "the first gradient's own memory";
  // A graph that is kept keeps its own.
  release_main_grad(weight);
  const Tensor loss = linear_cross_entropy(hidden, weight, labels) * 3.0;
  loss.backward({}, true);
  loss.backward();
  EXPECT_THAT(weight.grad().to_vector<float>(), ElementsAreArray(expected));
}

}  // namespace
}  // namespace tapestry
