// What backward must find unchanged though it does not read it: what PyTorch's formulas save.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

constexpr size_t kResult = SIZE_MAX;

struct Case {
  const char* name;
  std::function<Tensor(const TensorList&)> op;
  TensorList inputs;
  size_t changed;  // an input, or kResult
};

Tensor leaf(const Shape& shape, DType dtype = kFloat64) {
  return tensor(std::vector<double>(static_cast<size_t>(shape.numel()), 0.5), shape)
      .to(dtype)
      .set_requires_grad();
}
Tensor distinct() { return tensor({1.0, 3.0, 2.0}).to(kFloat64).set_requires_grad(); }
Tensor indices(DType dtype = kInt64) { return tensor({1.0, 0.0}).to(dtype); }

std::vector<Case> cases() {
  using In = const TensorList&;
  std::vector<Case> all{
      {"mean", [](In x) { return mean(x[0]); }, {leaf({3})}, 0},
      {"var", [](In x) { return var(x[0]); }, {distinct()}, 0},
      {"std", [](In x) { return tapestry::std(x[0]); }, {distinct()}, 0},
      {"std", [](In x) { return tapestry::std(x[0]); }, {distinct()}, kResult},
      {"max", [](In x) { return max(x[0]); }, {distinct()}, 0},
      {"max", [](In x) { return max(x[0]); }, {distinct()}, kResult},
      {"logsumexp", [](In x) { return logsumexp(x[0], {0}); }, {leaf({3}, kBFloat16)}, 0},
      {"logsumexp", [](In x) { return logsumexp(x[0], {0}); }, {leaf({3}, kBFloat16)}, kResult},
      {"prod", [](In x) { return prod(x[0]); }, {tensor({0.0, 1.0}).set_requires_grad()}, kResult},
      {"pow 0", [](In x) { return pow(x[0], 0); }, {leaf({3})}, 0},
      {"number pow", [](In x) { return pow(2.0, x[0]); }, {leaf({3})}, 0},
      {"mul", [](In x) { return mul(x[0], x[1]); }, {leaf({3}), leaf({3}, kFloat32)}, 1},
      {"div", [](In x) { return div(x[0], x[1]); }, {leaf({3}, kFloat32), leaf({3})}, 0},
      {"pow", [](In x) { return pow(x[0], x[1]); }, {leaf({3}), leaf({3}, kFloat32)}, 1},
      {"maximum", [](In x) { return maximum(x[0], x[1]); }, {leaf({3}), leaf({3}, kFloat32)}, 1},
      {"minimum", [](In x) { return minimum(x[0], x[1]); }, {leaf({3}, kFloat32), leaf({3})}, 0},
      {"einsum",
       [](In x) {
         return einsum("ij,kj->ik", {x[0], x[1]});
       },
       {leaf({3, 2}).detach().t().set_requires_grad(), leaf({2, 3})},
       0},
      {"gather", [](In x) { return gather(x[0], 0, x[1]); }, {leaf({2}), indices()}, 0},
      {"index_add",
       [](In x) { return index_add(x[0], 0, x[1], x[2]); },
       {leaf({3}), indices(), leaf({2})},
       2},
      {"index_copy",
       [](In x) { return index_copy(x[0], 0, x[1], x[2]); },
       {leaf({3}), indices(), leaf({2})},
       2},
      {"index", [](In x) { return index(x[0], {x[1]}); }, {leaf({3}), indices()}, 1},
      {"index_put",
       [](In x) { return index_put(x[0], {x[1]}, x[2], true); },
       {leaf({3}), indices(), leaf({2})},
       1},
      {"masked_select",
       [](In x) { return masked_select(x[0], x[1]); },
       {leaf({2}), indices(kBool)},
       1},
      {"embedding", [](In x) { return embedding(x[0], x[1]); }, {leaf({3, 2}), indices()}, 0},
      {"embedding", [](In x) { return embedding(x[0], x[1]); }, {leaf({3, 2}), indices(kInt32)}, 1},
      {"nll_loss", [](In x) { return nll_loss(x[0], x[1]); }, {leaf({2, 3}), indices()}, 0},
      {"mse_loss", [](In x) { return mse_loss(x[0], x[1]); }, {leaf({3}), leaf({3})}, 1},
      {"smooth_l1_loss",
       [](In x) { return smooth_l1_loss(x[0], x[1]); },
       {leaf({3}), leaf({3})},
       0},
      {"cross_entropy",
       [](In x) { return cross_entropy(x[0], x[1]); },
       {leaf({2, 3}), indices(kInt32)},
       1},
      {"linear_cross_entropy",
       [](In x) { return linear_cross_entropy(x[0], x[1], x[2]); },
       {leaf({2, 3}), leaf({4, 3}), indices()},
       2}};
  for (const bool put : {false, true}) {  // an index of another dtype is converted
    all.push_back(
        {put ? "scatter_add" : "gather",
         [put](In x) { return put ? scatter_add(x[0], 0, x[1], x[0]) : gather(x[0], 0, x[1]); },
         {leaf({2}), indices(kInt32)},
         1});
    all.push_back(
        {put ? "index_add" : "index_select",
         [put](In x) { return put ? index_add(x[0], 0, x[1], x[0]) : index_select(x[0], 0, x[1]); },
         {leaf({2}), indices(kInt32)},
         1});
  }
  return all;
}

TEST(Watched, IsRefusedInBackwardWhereItWasChanged) {
  for (const Case& c : cases()) {
    for (const bool change : {false, true}) {
      const Tensor y = c.op(c.inputs);
      if (change) {
        const NoGradGuard guard;
        fill_(c.changed == kResult ? y : c.inputs[c.changed], 0);
      }
      const auto run = [&] { y.backward(ones(y.shape(), y.dtype())); };
      if (change) {
        EXPECT_THAT(message_of<RuntimeError>(run), HasSubstr("changed in place"))
            << c.name << " " << c.changed;
      } else {
        EXPECT_NO_THROW(run()) << c.name;
      }
    }
  }
}

TEST(Watched, IsForgottenWithTheGraph) {
  const Tensor x = distinct();
  const Tensor y = mean(x);
  y.backward();
  const NoGradGuard guard;
  fill_(x, 0);
  EXPECT_THAT(message_of<RuntimeError>([&] { y.backward(); }), HasSubstr("released"));
}

// Its version is, its memory is not.
TEST(Watched, DoesNotKeepMemory) {
  Tensor y;
  {
    const Tensor source = mul(leaf({100000}), 2);
    const Tensor index = arange(100000);
    y = index_add(leaf({100000}), 0, index, source);
    EXPECT_EQ(source.storage()->use_count(), 1U);
  }
  sum(y).backward();
}

// A leaf that is kept itself is looked at again when gradients of gradients are made.
TEST(Saved, ALeafMayComeToWantAGradient) {
  const Tensor w = tensor({2.0, 3.0});
  const Tensor x = tensor({5.0, 7.0}).set_requires_grad();
  const Tensor y = sum(mul(x, w));
  w.set_requires_grad();
  const Tensor dx = grad(y, {x}, {}, {.create_graph = true})[0];
  EXPECT_EQ(dx.to_vector<double>(), (std::vector<double>{2, 3}));
  sum(square(dx)).backward();
  EXPECT_EQ(w.grad().to_vector<double>(), (std::vector<double>{4, 6}));
  EXPECT_FALSE(x.grad().defined());
}

}  // namespace
}  // namespace tapestry
