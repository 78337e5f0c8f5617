// What retain_grad() keeps over several passes: as in PyTorch, the sum.
#include "autograd/ops/inplace.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/tape/tape_test_util.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;

TEST(RetainGrad, EveryPassAdds) {
  const Tensor x = leaf({2});
  const Tensor y = x * x;
  y.retain_grad();
  const Tensor z = sum(y * y);
  z.backward({}, true);
  EXPECT_THAT(values(y.grad()), ElementsAre(8));
  z.backward({}, true);
  EXPECT_THAT(values(y.grad()), ElementsAre(16));
  grad(z, {x}, {}, {.retain_graph = true});
  EXPECT_THAT(values(y.grad()), ElementsAre(24));
  grad(z, {y}, {}, {.retain_graph = true});
  EXPECT_THAT(values(y.grad()), ElementsAre(32));
  y.set_grad({});
  z.backward();
  EXPECT_THAT(values(y.grad()), ElementsAre(8));
}

TEST(RetainGrad, ASecondOrderPassAdds) {
  const Tensor x = leaf({2});
  const Tensor y = x * x;
  y.retain_grad();
  const Tensor z = sum(y * y * y);
  const Tensor g = grad(z, {x}, {}, {.create_graph = true})[0];  // 6 x^5
  EXPECT_THAT(values(y.grad()), ElementsAre(48));
  sum(g).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(30 * 16));
  EXPECT_THAT(values(y.grad()), ElementsAre(48 + 96));  // d(2 x 3 y^2)/dy = 12 x y
}

TEST(RetainGrad, HasAGraphWithCreateGraph) {
  const Tensor x = leaf({2});
  const Tensor y = x * x;
  y.retain_grad();
  sum(y * y * y).backward({}, false, true);
  EXPECT_TRUE(y.grad().requires_grad());
  EXPECT_THAT(values(grad(sum(y.grad()), {x})[0]), ElementsAre(6 * 4 * 4));  // 6 y dy/dx
  // A gradient with a graph holds the tensor that holds it: dropping it ends the cycle.
  x.set_grad({});
  y.set_grad({});
}

TEST(RetainGrad, IsNobodyElsesMemory) {
  const Tensor x = leaf({2, 3});
  const Tensor y = x * 2;
  y.retain_grad();
  const Tensor given = tensor({5, 7});
  y.backward(given, true);
  y.grad().data<float>()[0] = 100;
  EXPECT_THAT(values(given), ElementsAre(5, 7));
  sum(y).backward();
  EXPECT_THAT(values(y.grad()), ElementsAre(101, 8));
}

TEST(RetainGrad, KeepsWhatIsThereInTheOrderOfHooks) {
  const Tensor x = leaf({2});
  const Tensor y = x * 1;
  y.register_hook([](const Tensor& g) { return g * 10; });
  y.retain_grad();
  y.register_hook([](const Tensor& g) { return g * 10; });
  sum(y).backward();
  EXPECT_THAT(values(y.grad()), ElementsAre(10));
  EXPECT_THAT(values(x.grad()), ElementsAre(100));
}

TEST(RetainGrad, BelongsToTheValueAfterAChangeInPlace) {
  const Tensor x = leaf({2});
  const Tensor y = x * x;
  std::vector<float> seen;
  y.retain_grad();
  y.register_hook([&](const Tensor& g) {
    seen.push_back(static_cast<float>(g.item()));
    return Tensor();
  });
  mul_(y, 3);
  sum(y * y).backward();
  EXPECT_THAT(values(y.grad()), ElementsAre(24));
  EXPECT_THAT(seen, ElementsAre(72));  // the hook's is that of the value before
}

TEST(RetainGrad, EndsWithTheTensor) {
  const Tensor x = leaf({2});
  Tensor z;
  {
    const Tensor y = x * x;
    y.retain_grad();
    z = sum(y * y);
  }
  z.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(32));
}

TEST(RetainGrad, DoesNotKeepAGraphOfItselfAlive) {
  const int64_t before = memory_stats().current_bytes;
  {
    const Tensor x = leaf({2});
    const Tensor y = x * x;
    y.retain_grad();
    grad(sum(y * y * y), {x}, {}, {.create_graph = true});
    EXPECT_TRUE(y.grad().requires_grad());
  }
  EXPECT_EQ(memory_stats().current_bytes, before);
}

}  // namespace
}  // namespace tapestry
