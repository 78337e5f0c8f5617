// backward(), grad(), grad modes.
#include <cmath>

#include "tests/autograd/tape/tape_test_util.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Backward, AccumulatesIntoLeaves) {
  const Tensor x = leaf({1, 2, 3});
  sum(x * x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(2, 4, 6));
  sum(3 * x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(5, 7, 9));
  x.set_grad({});
  EXPECT_FALSE(x.grad().defined());
  sum(x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(1, 1, 1));
}

TEST(Backward, FanOutAddsUp) {
  const Tensor x = leaf({2});
  const Tensor y = x * x;         // used three times
  sum(y * y + y + x).backward();  // x^4 + x^2 + x
  EXPECT_THAT(values(x.grad()), ElementsAre(4 * 8 + 2 * 2 + 1));
}

TEST(Backward, OneTensorOnBothSides) {
  const Tensor x = leaf({3});
  sum(x - x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(0));
}

TEST(Backward, OnlyLeavesThatWantIt) {
  const Tensor x = leaf({1, 2});
  const Tensor c = tensor({5, 6});
  const Tensor y = x * c;
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(y.is_leaf());
  EXPECT_FALSE((c * c).requires_grad());
  sum(y).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(5, 6));
  EXPECT_FALSE(c.grad().defined());
  EXPECT_FALSE(y.grad().defined());
}

TEST(Backward, GivenGradient) {
  const Tensor x = leaf({1, 2});
  (x * x).backward(tensor({10, 100}));
  EXPECT_THAT(values(x.grad()), ElementsAre(20, 400));
}

TEST(Backward, TheGivenGradientIsNotChangedLater) {
  const Tensor x = leaf({1, 2});
  const Tensor gradient = tensor({1, 1});
  x.backward(gradient);  // a leaf as root: the gradient goes straight into it
  x.backward(gradient);
  EXPECT_THAT(values(x.grad()), ElementsAre(2, 2));
  EXPECT_THAT(values(gradient), ElementsAre(1, 1));
}

TEST(Backward, SeveralRoots) {
  const Tensor x = leaf({1, 2});
  const Tensor shared = x * x;
  const TensorList roots = {sum(shared), 3 * shared};
  backward(roots, TensorList{Tensor(), tensor({1, 10})});
  EXPECT_THAT(values(x.grad()), ElementsAre(2 + 6, 4 + 120));
  EXPECT_THROW(backward(roots, TensorList{Tensor()}), ValueError);
}

TEST(Backward, TheSameRootTwice) {
  const Tensor x = leaf({3});
  const Tensor y = sum(x * x);
  backward(TensorList{y, y});
  EXPECT_THAT(values(x.grad()), ElementsAre(12));
}

TEST(Backward, TwoLeavesDoNotShareAGradient) {
  const Tensor a = leaf({1});
  const Tensor b = leaf({2});
  sum(a + b).backward();  // both receive what is one tensor inside
  sum(5 * a).backward();
  EXPECT_THAT(values(a.grad()), ElementsAre(6));
  EXPECT_THAT(values(b.grad()), ElementsAre(1));
}

TEST(Backward, GradientOfAnExpandedValueHasItsOwnMemory) {
  const Tensor x = leaf({1, 2, 3});
  sum(x).backward();
  EXPECT_TRUE(x.grad().is_contiguous());
  sum(x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(2, 2, 2));
}

TEST(Backward, RetainGraph) {
  const Tensor x = leaf({2});
  const Tensor y = sum(x * x);
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(8));
  EXPECT_THAT(message_of<RuntimeError>([&] { y.backward(); }), HasSubstr("retain_graph"));
}

TEST(Backward, ASharedPartThatWasReleased) {
  const Tensor x = leaf({2});
  const Tensor shared = x * x;
  sum(shared).backward();
  EXPECT_THAT(message_of<RuntimeError>([&] { sum(3 * shared).backward(); }), HasSubstr("mul"));
}

TEST(Backward, Errors) {
  const Tensor x = leaf({1, 2});
  EXPECT_THAT(message_of<ValueError>([&] { (x * x).backward(); }),
              HasSubstr("root 0 has shape [2]"));
  EXPECT_THAT(message_of<RuntimeError>([&] {
                sum(tensor({1, 2})).backward();
              }),
              HasSubstr("has no graph"));
  EXPECT_THAT(message_of<RuntimeError>([&] { sum(x.detach()).backward(); }), HasSubstr("detached"));
  EXPECT_THAT(message_of<ValueError>([&] { (x * x).backward(tensor({1})); }),
              HasSubstr("is float32 [1], the tensor float32 [2]"));
  EXPECT_THAT(message_of<TypeError>([&] { (x * x).backward(ones({2}, kFloat64)); }),
              HasSubstr("float64"));
  EXPECT_THAT(message_of<RuntimeError>([&] { backward(TensorList{Tensor()}); }),
              HasSubstr("undefined"));
  EXPECT_FALSE(x.grad().defined());
}

TEST(Backward, AnErrorLeavesTheEngineUsable) {
  const Tensor x = leaf({2});
  const Tensor y = x * x;
  const Tensor z = sum(y);
  z.register_hook([](const Tensor&) -> Tensor { throw ValueError("stop"); });
  EXPECT_THROW(z.backward(), ValueError);
  sum(y * x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(12));
}

TEST(Backward, MixedDTypes) {
  const Tensor x = leaf({1, 2});
  const Tensor half = x.to(kBFloat16) * 3;
  sum(half.to(kFloat32) * tensor({2, 4})).backward();
  EXPECT_EQ(x.grad().dtype(), kFloat32);
  EXPECT_THAT(values(x.grad()), ElementsAre(6, 12));
}

// ------------------------------------------------------------------------------------------ grad()

TEST(Grad, LeavesAreNotTouched) {
  const Tensor x = leaf({3});
  const TensorList g = grad(sum(x * x), {x});
  EXPECT_THAT(values(g[0]), ElementsAre(6));
  EXPECT_FALSE(x.grad().defined());
}

TEST(Grad, OfIntermediateValues) {
  const Tensor x = leaf({3});
  const Tensor y = x * x;
  const Tensor z = sum(y * y);
  const TensorList g = grad(z, {y, x, z});
  EXPECT_THAT(values(g[0]), ElementsAre(18));
  EXPECT_THAT(values(g[1]), ElementsAre(108));
  EXPECT_THAT(values(g[2]), ElementsAre(1));
}

TEST(Grad, RunsOnlyWhatLeadsToTheInputs) {
  const Tensor x = leaf({3});
  const Tensor w = leaf({5});
  const Tensor y = x * x;
  int elsewhere = 0;
  const Tensor other = w * w;
  other.register_hook([&](const Tensor&) {
    ++elsewhere;
    return Tensor();
  });
  const Tensor z = sum(y * other);
  EXPECT_THAT(values(grad(z, {y})[0]), ElementsAre(25));
  EXPECT_EQ(elsewhere, 0);
}

TEST(Grad, TheSameInputTwice) {
  const Tensor x = leaf({3});
  const TensorList g = grad(sum(x * x), {x, x});
  EXPECT_THAT(values(g[0]), ElementsAre(6));
  EXPECT_THAT(values(g[1]), ElementsAre(6));
}

TEST(Grad, UnusedInputs) {
  const Tensor x = leaf({3});
  const Tensor unused = leaf({4});
  const Tensor y = sum(x * x);
  EXPECT_THAT(message_of<RuntimeError>([&] {
                grad(y, {x, unused}, {}, {.retain_graph = true});
              }),
              HasSubstr("input 1"));
  const TensorList g = grad(y, {x, unused}, {}, {}, /*allow_unused=*/true);
  EXPECT_THAT(values(g[0]), ElementsAre(6));
  EXPECT_FALSE(g[1].defined());
}

TEST(Grad, ALeafAsRoot) {
  const Tensor x = leaf({3});
  const Tensor other = leaf({4});
  EXPECT_THAT(values(grad(x, {x})[0]), ElementsAre(1));
  EXPECT_FALSE(grad(x, {other}, {}, {}, true)[0].defined());
}

TEST(Grad, Errors) {
  const Tensor x = leaf({3});
  EXPECT_THAT(message_of<RuntimeError>([&] { grad(sum(x), {tensor({1})}); }),
              HasSubstr("not require a gradient"));
  EXPECT_THROW(grad(sum(x), {Tensor()}), RuntimeError);
  EXPECT_THAT(message_of<RuntimeError>([&] { grad(Tensor(), {x}); }), HasSubstr("undefined"));
  EXPECT_THROW(grad(sum(tensor({1})), {x}), RuntimeError);
}

TEST(Grad, SecondAndThirdDerivatives) {
  const Tensor x = leaf({2});
  const Tensor y = sum(pow(x, 4));
  const Tensor first = grad(y, {x}, {}, {.create_graph = true})[0];
  const Tensor second = grad(sum(first), {x}, {}, {.create_graph = true})[0];
  const Tensor third = grad(sum(second), {x})[0];
  EXPECT_THAT(values(first), ElementsAre(32));
  EXPECT_THAT(values(second), ElementsAre(48));
  EXPECT_THAT(values(third), ElementsAre(48));
}

TEST(Grad, SecondDerivativeThroughASavedOutput) {
  const Tensor x = tensor(std::vector<double>{0.7}, {1}).set_requires_grad();
  Tensor g = tanh(x);
  for (int i = 0; i < 3; ++i) {
    g = grad(sum(g), {x}, {}, {.create_graph = true})[0];
  }
  const double t = std::tanh(0.7);
  EXPECT_NEAR(g.item(), (1 - t * t) * (6 * t * t - 2), 1e-14);
}

TEST(Grad, CreateGraphWithBackward) {
  const Tensor x = leaf({3});
  sum(x * x * x).backward({}, false, /*create_graph=*/true);
  const Tensor penalty = sum(x.grad() * x.grad());  // 9 x^4
  const TensorList g = grad(penalty, {x});
  EXPECT_THAT(values(g[0]), ElementsAre(36 * 27));
  // A gradient with a graph holds the leaf that holds it: dropping it ends the cycle.
  x.set_grad({});
}

TEST(Grad, MixedSecondDerivatives) {
  const Tensor x = leaf({2});
  const Tensor y = leaf({3});
  const Tensor gx = grad(sum(x * x * y), {x}, {}, {.create_graph = true})[0];  // 2 x y
  const TensorList g = grad(sum(gx), {x, y});
  EXPECT_THAT(values(g[0]), ElementsAre(6));
  EXPECT_THAT(values(g[1]), ElementsAre(4));
}

TEST(Grad, WithoutCreateGraphResultsHaveNone) {
  const Tensor x = leaf({2});
  EXPECT_FALSE(grad(sum(x * x), {x})[0].requires_grad());
}

// -------------------------------------------------------------------------------------- grad modes

TEST(GradMode, NothingIsRecordedWithout) {
  const Tensor x = leaf({2});
  {
    const NoGradGuard guard;
    EXPECT_FALSE(grad_enabled());
    EXPECT_FALSE((x * x).requires_grad());
    {
      const EnableGradGuard inner;
      EXPECT_TRUE((x * x).requires_grad());
    }
    EXPECT_FALSE((x * x).requires_grad());
  }
  EXPECT_TRUE((x * x).requires_grad());
}

TEST(GradMode, IsPutBackByAnException) {
  EXPECT_THROW(
      {
        const NoGradGuard guard;
        throw ValueError("x");
      },
      ValueError);
  EXPECT_TRUE(grad_enabled());
}

TEST(GradMode, ForwardOfAnOpRecordsNothing) {
  const Tensor x = leaf({2});
  EXPECT_THROW(sum(x * ones({3, 0, 2}).reshape({1, 2})), ValueError);
  EXPECT_TRUE(grad_enabled());  // also after an op's forward threw
}

TEST(Detach, CutsTheGraphAndSharesMemory) {
  const Tensor x = leaf({2});
  const Tensor y = x * x;
  const Tensor cut = y.detach();
  EXPECT_FALSE(cut.requires_grad());
  EXPECT_TRUE(cut.is_leaf());
  EXPECT_EQ(cut.raw(), y.raw());
  sum(cut * x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(4));
}

TEST(RequiresGrad, CannotBeSwitchedOffOnAResult) {
  const Tensor x = leaf({2});
  const Tensor y = x * x;
  EXPECT_THAT(message_of<RuntimeError>([&] { y.set_requires_grad(false); }),
              HasSubstr("result of mul; use detach()"));
}

}  // namespace
}  // namespace tapestry
