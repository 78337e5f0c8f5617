// Ops that add their gradient straight into a leaf's main_grad.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"

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

}  // namespace
}  // namespace tapestry
