// What a leaf keeps as its gradient, and what it refuses.
#include "autograd/tape/gradient_sum.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tape/op.h"
#include "tests/autograd/tape/tape_test_util.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor doubles(std::vector<double> values) {
  return tensor(values, {static_cast<int64_t>(values.size())});
}

TEST(LeafGradient, OfARecordedPassIsNoExpandedView) {
  const Tensor a = leaf({1, 2, 3});
  sum(a).backward({}, /*retain_graph=*/false, /*create_graph=*/true);
  EXPECT_TRUE(a.grad().is_contiguous());
  sum(a * a).backward();
  EXPECT_THAT(values(a.grad()), ElementsAre(3, 5, 7));
}

TEST(LeafGradient, OfARecordedPassIsNotTheCallersTensor) {
  const Tensor a = leaf({1, 2});
  const Tensor given = tensor({5, 6});
  a.backward(given, false, true);
  sum(a).backward();
  EXPECT_THAT(values(a.grad()), ElementsAre(6, 7));
  EXPECT_THAT(values(given), ElementsAre(5, 6));
  EXPECT_EQ(given.version(), 0U);
}

TEST(LeafGradient, TheCopyOfARecordedPassIsPartOfTheGraph) {
  const Tensor a = leaf({1, 2});
  const Tensor w = leaf({3, 4});
  const Tensor given = w * w;  // lives on, so that the leaf needs a copy
  a.backward(given, false, true);
  EXPECT_NE(a.grad().raw(), given.raw());
  EXPECT_THAT(values(grad(sum(a.grad()), {w})[0]), ElementsAre(6, 8));
}

TEST(LeafGradient, OfARecordedPassIsAPlaceOfItsOwnInTheGraph) {
  const Tensor a = leaf({1, 2});
  const Tensor b = leaf({3, 4});
  const Tensor sum_of_both = a + tanh(b);
  sum(sum_of_both * sum_of_both).backward({}, false, true);
  a.grad().retain_grad();
  const Tensor of_a = a.grad();
  const Tensor of_b = b.grad();  // made of the same gradient
  sum(of_b).backward({}, true);
  EXPECT_FALSE(of_a.grad().defined());
  sum(of_a).backward();
  EXPECT_THAT(values(of_a.grad()), ElementsAre(1, 1));
  // A gradient with a graph holds the leaf that holds it: dropping it ends the cycle.
  a.set_grad({});
  b.set_grad({});
}

TEST(LeafGradient, TwoLeavesOfARecordedPassShareNothing) {
  const Tensor a = leaf({1, 2});
  const Tensor b = leaf({3, 4});
  sum(a + b).backward({}, false, true);
  sum(3 * a).backward();
  EXPECT_THAT(values(a.grad()), ElementsAre(4, 4));
  EXPECT_THAT(values(b.grad()), ElementsAre(1, 1));
}

TEST(LeafGradient, AnUnrecordedPassAddsAConstantToAGraph) {
  const Tensor a = leaf({1, 2, 3});
  sum(a * a * a).backward({}, false, true);
  sum(5 * a).backward();
  EXPECT_THAT(values(a.grad()), ElementsAre(3 + 5, 12 + 5, 27 + 5));
  EXPECT_THAT(values(grad(sum(a.grad()), {a})[0]), ElementsAre(6, 12, 18));
  a.set_grad({});
}

TEST(LeafGradient, AHandleOfTheGradientThatAGraphHasSavedIsWatched) {
  const Tensor a = leaf({1, 2});
  sum(a * a).backward();
  const Tensor w = leaf({1, 1});
  const Tensor y = sum(a.grad() * w);
  sum(a).backward();  // adds in place
  EXPECT_THAT(message_of<RuntimeError>([&] { y.backward(); }), HasSubstr("changed in place"));
}

TEST(LeafGradient, SetGradCopiesAnExpandedTensor) {
  const Tensor a = leaf({1, 2, 3});
  const Tensor one = tensor({1});
  a.set_grad(one.expand({3}));
  sum(a * a).backward();
  EXPECT_THAT(values(a.grad()), ElementsAre(3, 5, 7));
  EXPECT_EQ(one.item(), 1);
}

TEST(LeafGradient, SetGradKeepsADenseTensorItself) {
  const Tensor a = leaf({1, 2});
  const Tensor given = tensor({5, 6});
  a.set_grad(given);
  EXPECT_TRUE(a.grad().is_same(given));
  sum(a).backward();
  EXPECT_THAT(values(given), ElementsAre(6, 7));
  EXPECT_EQ(given.version(), 1U);
}

// Its backward gives out memory that belongs to somebody else.
struct BorrowedGradient {
  static constexpr OpName name = "test_borrowed_gradient";
  float* memory;
  Tensor forward(const Tensor& x) { return x * 2; }
  Tensor backward(const Tensor& dy) const {
    return Tensor(make_ref<TensorImpl>(make_ref<Storage>(memory, 2 * sizeof(float), [] {}), 0,
                                       dy.shape(), contiguous_strides(dy.shape()), dy.dtype()));
  }
};

TEST(LeafGradient, MemoryOfSomebodyElseIsCopied) {
  const Tensor a = leaf({1, 2});
  std::array<float, 2> memory = {8, 9};
  for (int pass = 0; pass < 2; ++pass) {
    sum(apply_op(BorrowedGradient{memory.data()}, a) + a).backward();  // two contributions
  }
  EXPECT_THAT(values(a.grad()), ElementsAre(18, 20));
  EXPECT_THAT(memory, ElementsAre(8, 9));
}

TEST(LeafGradient, OfAnUnrecordedPassHasNoGraph) {
  const Tensor a = leaf({1, 2});
  const Tensor w = leaf({3, 4});
  a.register_hook([&](const Tensor& g) {
    const EnableGradGuard guard;
    return g * w;
  });
  sum(a).backward();
  EXPECT_THAT(values(a.grad()), ElementsAre(3, 4));
  EXPECT_FALSE(a.grad().requires_grad());
}

TEST(LeafGradient, NoneForALeafThatWasSwitchedOff) {
  const Tensor a = leaf({1, 2});
  const Tensor b = leaf({1, 2});
  const Tensor y = sum(a * b);
  int calls = 0;
  a.register_post_accumulate_grad_hook([&](const Tensor&) { ++calls; });
  a.set_requires_grad(false);
  y.backward();
  EXPECT_FALSE(a.grad().defined());
  EXPECT_EQ(calls, 0);
  EXPECT_THAT(values(b.grad()), ElementsAre(1, 2));
}

TEST(LeafGradient, MainGradTakesNoGraph) {
  const Tensor a = leaf({1, 2});
  const Tensor buffer = zeros({2});
  a.set_main_grad(buffer);
  EXPECT_THAT(message_of<RuntimeError>([&] { sum(a * a).backward({}, false, true); }),
              AllOf(HasSubstr("main_grad"), HasSubstr("create_graph")));
  EXPECT_THAT(values(buffer), ElementsAre(0, 0));
  const TensorList first = grad(sum(a * a * a), {a}, {}, {.create_graph = true});
  sum(first[0]).backward();
  EXPECT_THAT(values(buffer), ElementsAre(6, 12));
}

// ------------------------------------------------------------------- one check at every door

TEST(GradientCheck, SetGrad) {
  const Tensor a = leaf({1, 2});
  EXPECT_THAT(message_of<TypeError>([&] {
                a.set_grad(doubles({1, 2}));
              }),
              AllOf(HasSubstr("float64 [2]"), HasSubstr("float32 [2]")));
  EXPECT_THAT(message_of<ValueError>([&] { a.set_grad(tensor({1})); }),
              AllOf(HasSubstr("[1]"), HasSubstr("[2]")));
  EXPECT_FALSE(a.grad().defined());
}

TEST(GradientCheck, HookOfALeaf) {
  const Tensor a = leaf({1, 2});
  a.register_hook([](const Tensor& g) { return g.to(kFloat64); });
  EXPECT_THAT(message_of<TypeError>([&] { sum(a).backward(); }),
              AllOf(HasSubstr("hook"), HasSubstr("float64 [2]"), HasSubstr("float32 [2]")));
  EXPECT_FALSE(a.grad().defined());
}

TEST(GradientCheck, HookOfAResult) {
  const Tensor a = leaf({1, 2});
  const Tensor y = a * 3;
  y.register_hook([](const Tensor& g) { return g.to(kFloat64); });
  EXPECT_THAT(message_of<TypeError>([&] { sum(y).backward(); }),
              AllOf(HasSubstr("mul_scalar"), HasSubstr("hook"), HasSubstr("float64 [2]"),
                    HasSubstr("float32 [2]")));
}

TEST(GradientCheck, HookOfALeafWithAMainGrad) {
  const Tensor a = leaf({1, 2});
  a.set_main_grad(zeros({2}));
  a.register_hook([](const Tensor& g) { return g.to(kBFloat16); });
  EXPECT_THAT(message_of<TypeError>([&] { sum(a).backward(); }), HasSubstr("bfloat16 [2]"));
}

TEST(GradientCheck, Roots) {
  const Tensor a = leaf({1, 2});
  EXPECT_THAT(message_of<TypeError>([&] {
                (a * a).backward(doubles({1, 1}));
              }),
              AllOf(HasSubstr("root 0"), HasSubstr("float64 [2]"), HasSubstr("float32 [2]")));
  EXPECT_THAT(message_of<TypeError>([&] {
                grad(a * a, {a}, doubles({1, 1}));
              }),
              HasSubstr("float64 [2]"));
}

TEST(GradientCheck, Accumulate) {
  EXPECT_THAT(message_of<TypeError>([] {
                accumulate(tensor({1, 2}), doubles({1, 2}));
              }),
              AllOf(HasSubstr("float64 [2]"), HasSubstr("float32 [2]")));
  EXPECT_THROW(accumulate(tensor({1, 2}), tensor({1})), ValueError);
}

struct WrongSize {
  static constexpr OpName name = "test_wrong_main_grad";
  Tensor leaf;
  Tensor forward(const Tensor& x) { return x * 2; }
  Tensor backward(const Tensor& /*dy*/) const { return add_to_main_grad(leaf, ones({3})); }
};

TEST(GradientCheck, MainGradOfAnOp) {
  const Tensor a = leaf({1, 2});
  a.set_main_grad(zeros({2}));
  EXPECT_THAT(message_of<ValueError>([&] { sum(apply_op(WrongSize{a}, a)).backward(); }),
              AllOf(HasSubstr("main_grad"), HasSubstr("[3]"), HasSubstr("[2]")));
}

TEST(GradientCheck, ALeafThatChangedItsDTypeUnderAGraph) {
  const Tensor a = leaf({1, 2});
  const Tensor y = sum(a * 3);
  set_data(a, doubles({1, 2}));
  EXPECT_THAT(message_of<TypeError>([&] { y.backward(); }),
              AllOf(HasSubstr("float32 [2]"), HasSubstr("float64 [2]")));
  EXPECT_FALSE(a.grad().defined());
  sum(a * 3).backward();  // a graph made since
  EXPECT_EQ(a.grad().dtype(), kFloat64);
  EXPECT_THAT(values(a.grad()), ElementsAre(3, 3));
}

TEST(SetData, PutsOtherMemoryUnderAllHandles) {
  const Tensor a = leaf({1, 2});
  const Tensor handle = a;  // NOLINT(performance-unnecessary-copy-initialization): it follows
  const Tensor given = tensor({5, 6, 7, 8}).slice(0, 0, 4, 2);
  set_data(a, given);
  EXPECT_THAT(values(handle), ElementsAre(5, 7));
  EXPECT_EQ(handle.raw(), given.raw());
  EXPECT_FALSE(handle.is_contiguous());
  EXPECT_TRUE(handle.requires_grad());
}

TEST(SetData, WhatWasSavedIsRefused) {
  const Tensor a = leaf({1, 2});
  const Tensor y = sum(a * a);
  set_data(a, tensor({5, 6}));
  EXPECT_THAT(message_of<RuntimeError>([&] { y.backward(); }), HasSubstr("changed in place"));
}

TEST(SetData, Errors) {
  const Tensor a = leaf({1, 2});
  EXPECT_THROW(set_data(a, tensor({1})), ValueError);
  EXPECT_THROW(set_data(a * 2, tensor({1, 2})), RuntimeError);
  sum(a).backward();
  EXPECT_THAT(message_of<TypeError>([&] {
                set_data(a, doubles({1, 2}));
              }),
              AllOf(HasSubstr("gradient"), HasSubstr("float32 [2]"), HasSubstr("float64 [2]")));
  EXPECT_EQ(a.dtype(), kFloat32);
  set_data(a, tensor({5, 6}));  // the gradient fits
  EXPECT_THAT(values(a.grad()), ElementsAre(1, 1));
}

}  // namespace
}  // namespace tapestry
