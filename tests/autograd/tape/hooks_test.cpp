// Hooks, retained gradients, main gradients, and backward inside backward.
#include <memory>
#include <utility>

#include "autograd/tape/main_grad.h"
#include "tests/autograd/tape/tape_test_util.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Hooks, SeeTheCompleteGradientOfAResult) {
  const Tensor x = leaf({2});
  const Tensor y = x * x;
  std::vector<float> seen;
  y.register_hook([&](const Tensor& g) {
    seen.push_back(static_cast<float>(g.item()));
    return Tensor();
  });
  sum(3 * y + y * y).backward();  // two uses, one call
  EXPECT_THAT(seen, ElementsAre(3 + 2 * 4));
}

TEST(Hooks, ReplaceTheGradientInTheirOrder) {
  const Tensor x = leaf({2});
  const Tensor y = 5 * x;
  y.register_hook([](const Tensor& g) { return g + 1; });
  y.register_hook([](const Tensor& g) { return g * 10; });
  sum(y).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(100));
}

TEST(Hooks, OnALeafRunBeforeAccumulation) {
  const Tensor x = leaf({2});
  int calls = 0;
  x.register_hook([&](const Tensor& g) {
    ++calls;
    return g * 2;
  });
  sum(x * x + x).backward();
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(values(x.grad()), ElementsAre(10));
  sum(x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(12));
}

TEST(Hooks, MustKeepTheShape) {
  const Tensor x = leaf({2});
  const Tensor y = 5 * x;
  y.register_hook([](const Tensor&) { return tensor({1, 2}); });
  EXPECT_THAT(message_of<ValueError>([&] { sum(y).backward(); }), HasSubstr("mul_scalar"));
  x.register_hook([](const Tensor&) { return tensor({1, 2}); });
  EXPECT_THAT(message_of<ValueError>([&] { sum(x).backward(); }), HasSubstr("leaf"));
}

TEST(Hooks, NeedAGradient) {
  const Tensor c = tensor({1});
  EXPECT_THROW(c.register_hook([](const Tensor&) { return Tensor(); }), RuntimeError);
  EXPECT_THROW(c.register_post_accumulate_grad_hook([](const Tensor&) {}), RuntimeError);
  EXPECT_THROW(c.retain_grad(), RuntimeError);
  const Tensor y = leaf({1}) * 2;
  EXPECT_THAT(
      message_of<RuntimeError>([&] { y.register_post_accumulate_grad_hook([](const Tensor&) {}); }),
      HasSubstr("only a leaf"));
}

TEST(Hooks, PostAccumulateFiresOnceAfterTheLastContribution) {
  const Tensor x = leaf({2});
  std::vector<float> seen;
  x.register_post_accumulate_grad_hook(
      [&](const Tensor& p) { seen.push_back(static_cast<float>(p.grad().item())); });
  // Uses at several depths, among them the very first and the very last op.
  Tensor y = x * x;
  for (int i = 0; i < 5; ++i) {
    y = y + x;
  }
  sum(y * x).backward();  // x^3 + 5 x^2
  EXPECT_THAT(seen, ElementsAre(3 * 4 + 10 * 2));
  sum(x).backward();
  EXPECT_THAT(seen, ElementsAre(32, 33));
}

TEST(Hooks, PostAccumulateFiresOncePerBackwardWithSeveralRoots) {
  const Tensor x = leaf({2});
  int calls = 0;
  x.register_post_accumulate_grad_hook([&](const Tensor&) { ++calls; });
  backward(TensorList{sum(x * x), sum(3 * x), x});
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(values(x.grad()), ElementsAre(8));
}

TEST(Hooks, FireInTheOrderInWhichGradientsAreComplete) {
  // Layers that run last are done first: overlapped communication hangs on that.
  std::vector<int> order;
  TensorList weights;
  Tensor y = tensor({1});
  for (int i = 0; i < 3; ++i) {
    weights.push_back(leaf({2}));
    weights.back().register_post_accumulate_grad_hook(
        [&order, i](const Tensor&) { order.push_back(i); });
    y = tanh(y * weights.back());
  }
  sum(y).backward();
  EXPECT_THAT(order, ElementsAre(2, 1, 0));
}

TEST(Hooks, GradDoesNotFireThePostAccumulateHook) {
  const Tensor x = leaf({2});
  int calls = 0;
  x.register_post_accumulate_grad_hook([&](const Tensor&) { ++calls; });
  grad(sum(x * x), {x});
  EXPECT_EQ(calls, 0);
}

TEST(HookHandle, TakesAHookOff) {
  const Tensor x = leaf({2});
  const Tensor y = x * x;
  HookHandle on_leaf = x.register_hook([](const Tensor& g) { return g * 10; });
  HookHandle on_result = y.register_hook([](const Tensor& g) { return g * 100; });
  int calls = 0;
  HookHandle after = x.register_post_accumulate_grad_hook([&](const Tensor&) { ++calls; });
  sum(y).backward({}, true);
  EXPECT_THAT(values(x.grad()), ElementsAre(4000));
  EXPECT_EQ(calls, 1);
  for (HookHandle* handle : {&on_leaf, &on_result, &after}) {
    EXPECT_TRUE(handle->registered());
    handle->remove();
    EXPECT_FALSE(handle->registered());
    handle->remove();  // again: nothing happens
  }
  x.set_grad({});
  sum(y).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(4));
  EXPECT_EQ(calls, 1);
}

TEST(HookHandle, ItsEndLeavesTheHook) {
  const Tensor x = leaf({2});
  {
    HookHandle handle = x.register_hook([](const Tensor& g) { return g * 10; });
    const HookHandle moved = std::move(handle);
    EXPECT_TRUE(moved.registered());
  }
  sum(x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(10));
  HookHandle().remove();  // names nothing
}

TEST(HookHandle, OutlivesWhatItWasRegisteredOn) {
  HookHandle on_leaf;
  HookHandle on_result;
  {
    const Tensor x = leaf({2});
    on_leaf = x.register_hook([](const Tensor& g) { return g; });
    on_result = (x * x).register_hook([](const Tensor& g) { return g; });
  }
  on_leaf.remove();
  on_result.remove();
}

TEST(HookHandle, RemovingDropsWhatTheHookHolds) {
  const Tensor x = leaf({2});
  const auto held = std::make_shared<int>(1);
  HookHandle handle = x.register_hook([held](const Tensor& g) { return g; });
  EXPECT_EQ(held.use_count(), 2);
  handle.remove();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(HookHandle, ARemovedHookNoLongerKeepsAnOpFromMainGrad) {
  const Tensor x = leaf({1, 2});
  x.set_main_grad(zeros({2}));
  HookHandle handle = x.register_hook([](const Tensor& g) { return g * 10; });
  handle.remove();
  const NoGradGuard pass;
  EXPECT_TRUE(main_grad_target(x).buffer.defined());
}

// Registers hooks on a leaf, on a result, and after accumulation: what all of them have to stand.
struct HookedPlace {
  std::string name;
  std::function<HookHandle(const Tensor& x, const Tensor& y, std::function<void()>)> add;
};
class RunningHooks : public ::testing::TestWithParam<HookedPlace> {
 protected:
  HookHandle add(std::function<void()> hook) { return GetParam().add(x_, y_, std::move(hook)); }
  void pass() { sum(y_).backward({}, true); }

  Tensor x_ = leaf({2});
  Tensor y_ = x_ * x_;
  std::string calls_;
};
std::function<Tensor(const Tensor&)> calling(std::function<void()> hook) {
  return [hook = std::move(hook)](const Tensor&) {
    hook();
    return Tensor();
  };
}
INSTANTIATE_TEST_SUITE_P(
    Places,
    RunningHooks,
    ::testing::Values(HookedPlace{"leaf",
                                  [](const Tensor& x, const Tensor&, std::function<void()> hook) {
                                    return x.register_hook(calling(std::move(hook)));
                                  }},
                      HookedPlace{"result",
                                  [](const Tensor&, const Tensor& y, std::function<void()> hook) {
                                    return y.register_hook(calling(std::move(hook)));
                                  }},
                      HookedPlace{"post_accumulate",
                                  [](const Tensor& x, const Tensor&, std::function<void()> hook) {
                                    return x.register_post_accumulate_grad_hook(
                                        [hook = std::move(hook)](const Tensor&) { hook(); });
                                  }}),
    [](const auto& info) { return info.param.name; });

TEST_P(RunningHooks, RegisterOthersForTheNextPass) {
  add([&] {
    calls_ += 'a';
    for (int i = 0; i < 20; ++i) {  // enough to move the list
      add([&] { calls_ += 'b'; });
    }
  }).registered();
  pass();
  EXPECT_EQ(calls_, "a");
  pass();
  EXPECT_EQ(calls_, "aa" + std::string(20, 'b'));
}

TEST_P(RunningHooks, RemoveThemselves) {
  const auto held = std::make_shared<int>(0);
  HookHandle handle;
  handle = add([&, held] {
    handle.remove();
    ++*held;  // what was captured lives until the hook returns
    calls_ += 'a';
  });
  add([&] { calls_ += 'b'; });
  pass();
  EXPECT_EQ(held.use_count(), 1);
  pass();
  EXPECT_EQ(calls_, "abb");
}

TEST_P(RunningHooks, RemoveOthersAtOnce) {
  HookHandle later;
  HookHandle earlier = add([&] { calls_ += 'a'; });
  add([&] {
    later.remove();
    earlier.remove();
    calls_ += 'b';
  });
  later = add([&] { calls_ += 'c'; });
  pass();
  pass();
  EXPECT_EQ(calls_, "abb");
}

TEST_P(RunningHooks, AnExceptionLeavesTheListUsable) {
  HookHandle handle;
  handle = add([&] {
    handle.remove();
    throw ValueError("once");
  });
  EXPECT_THROW(pass(), ValueError);
  add([&] { calls_ += 'a'; });
  pass();
  EXPECT_EQ(calls_, "a");
}

TEST(Hooks, OfALeafDoNotRunInGradThoseOfAResultDo) {
  const Tensor x = leaf({2});
  const Tensor y = x * x;
  x.register_hook([](const Tensor& g) { return g * 10; });
  y.register_hook([](const Tensor& g) { return g * 100; });
  const TensorList g = grad(sum(y), {x, y});
  EXPECT_THAT(values(g[0]), ElementsAre(400));
  EXPECT_THAT(values(g[1]), ElementsAre(100));
}

TEST(RetainGrad, KeepsTheGradientOfAResult) {
  const Tensor x = leaf({2});
  const Tensor y = x * x;
  y.retain_grad();
  y.retain_grad();  // again: nothing changes
  x.retain_grad();  // a leaf keeps its own
  sum(y * y).backward();
  EXPECT_THAT(values(y.grad()), ElementsAre(8));
  EXPECT_THAT(values(x.grad()), ElementsAre(32));
}

TEST(MainGrad, TakesTheAccumulation) {
  const Tensor x = leaf({1, 2});
  const Tensor buffer = zeros({2});
  x.set_main_grad(buffer);
  sum(x * x).backward();
  EXPECT_THAT(values(buffer), ElementsAre(2, 4));
  EXPECT_EQ(x.grad().raw(), buffer.raw());
  sum(x).backward();
  EXPECT_THAT(values(buffer), ElementsAre(3, 5));
  EXPECT_THAT(message_of<RuntimeError>([&] {
                x.set_grad(tensor({0, 0}));
              }),
              HasSubstr("main_grad"));
  x.set_main_grad({});
  EXPECT_FALSE(x.grad().defined());
}

TEST(MainGrad, AddsSixteenBitGradientsInFloat32) {
  const Tensor x = ones({1}, kBFloat16).set_requires_grad();
  const Tensor buffer = zeros({1});
  x.set_main_grad(buffer);
  for (int i = 0; i < 300; ++i) {
    sum(x).backward();  // in bfloat16 the sum would stop at 256
  }
  EXPECT_EQ(buffer.item(), 300);
}

TEST(MainGrad, ViewsOfABucketWork) {
  const Tensor bucket = zeros({5});
  const Tensor a = leaf({1, 2});
  const Tensor b = leaf({1, 2, 3});
  a.set_main_grad(bucket.slice(0, 0, 2));
  b.set_main_grad(bucket.slice(0, 2, 5));
  (sum(2 * a) + sum(b * b)).backward();
  EXPECT_THAT(values(bucket), ElementsAre(2, 2, 2, 4, 6));
}

TEST(MainGrad, Errors) {
  const Tensor x = leaf({1, 2});
  EXPECT_THROW(x.set_main_grad(zeros({3})), ValueError);
  EXPECT_THROW(x.set_main_grad(zeros({2}, kFloat16)), TypeError);
}

TEST(Reentrant, BackwardInsideAHook) {
  const Tensor x = leaf({2});
  const Tensor w = leaf({3});
  const Tensor y = x * x;
  y.register_hook([&](const Tensor& g) {
    const EnableGradGuard guard;
    sum(w * w * g).backward();  // a graph of its own
    return Tensor();
  });
  sum(y * 5).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(20));
  EXPECT_THAT(values(w.grad()), ElementsAre(30));
}

TEST(Reentrant, BackwardOfAnOlderGraphInsideAHook) {
  const Tensor x = leaf({2});
  const Tensor w = leaf({3});
  const Tensor inner = sum(w * w);
  const Tensor y = x * x;
  y.register_hook([&](const Tensor&) {
    inner.backward();
    return Tensor();
  });
  sum(y * 5).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(20));
  EXPECT_THAT(values(w.grad()), ElementsAre(6));
}

TEST(Reentrant, BackwardThroughTheSameGraph) {
  const Tensor x = leaf({2});
  const Tensor shared = x * x;
  const Tensor side = sum(shared * 7);
  const Tensor y = shared * 5;
  y.register_hook([&](const Tensor&) {
    side.backward({}, /*retain_graph=*/true);  // runs nodes that also wait in the outer pass
    return Tensor();
  });
  (sum(y) + sum(shared)).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(28 + 20 + 4));
}

TEST(Reentrant, AnErrorInsideDoesNotSpoilTheOuterPass) {
  const Tensor x = leaf({2});
  const Tensor shared = x * x;
  const Tensor y = shared * 5;
  const Tensor bad = sum(shared * 7);
  bad.register_hook([](const Tensor&) -> Tensor { throw ValueError("inner"); });
  y.register_hook([&](const Tensor&) {
    EXPECT_THROW(bad.backward(), ValueError);
    return Tensor();
  });
  (sum(y) + sum(shared)).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(20 + 4));
}

}  // namespace
}  // namespace tapestry
