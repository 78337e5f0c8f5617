#include "autograd/ops/inplace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace inplace_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<float> floats(const Tensor& x) { return x.to_vector<float>(); }

Tensor leaf(std::initializer_list<float> values) { return tensor(values).set_requires_grad(); }

struct Pair {
  const char* name;
  std::function<Tensor(const Tensor&)> in_place;
  std::function<Tensor(const Tensor&)> out_of_place;
};

std::vector<Pair> pairs() {
  const Tensor other = tensor({0.5, 2, 1.5});
  const Tensor mask = gt(other, 1);
  return {
      {"add_", [=](const Tensor& x) { return add_(x, other); },
       [=](const Tensor& x) { return add(x, other); }},
      {"sub_", [=](const Tensor& x) { return sub_(x, other); },
       [=](const Tensor& x) { return sub(x, other); }},
      {"mul_", [=](const Tensor& x) { return mul_(x, other); },
       [=](const Tensor& x) { return mul(x, other); }},
      {"div_", [=](const Tensor& x) { return div_(x, other); },
       [=](const Tensor& x) { return div(x, other); }},
      {"add_ number", [](const Tensor& x) { return add_(x, 0.5); },
       [](const Tensor& x) { return add(x, 0.5); }},
      {"sub_ number", [](const Tensor& x) { return sub_(x, 0.5); },
       [](const Tensor& x) { return sub(x, 0.5); }},
      {"mul_ number", [](const Tensor& x) { return mul_(x, 0.5); },
       [](const Tensor& x) { return mul(x, 0.5); }},
      {"div_ number", [](const Tensor& x) { return div_(x, 0.5); },
       [](const Tensor& x) { return div(x, 0.5); }},
      {"pow_", [](const Tensor& x) { return pow_(x, 3); },
       [](const Tensor& x) { return pow(x, 3); }},
      {"neg_", neg_, neg},
      {"abs_", abs_, [](const Tensor& x) { return abs(x); }},
      {"floor_", floor_, [](const Tensor& x) { return floor(x); }},
      {"ceil_", ceil_, [](const Tensor& x) { return ceil(x); }},
      {"round_", round_, [](const Tensor& x) { return round(x); }},
      {"square_", square_, square},
      {"exp_", exp_, [](const Tensor& x) { return exp(x); }},
      {"log_", log_, [](const Tensor& x) { return log(x); }},
      {"sqrt_", sqrt_, [](const Tensor& x) { return sqrt(x); }},
      {"rsqrt_", rsqrt_, rsqrt},
      {"reciprocal_", reciprocal_, reciprocal},
      {"tanh_", tanh_, [](const Tensor& x) { return tanh(x); }},
      {"sigmoid_", sigmoid_, sigmoid},
      {"clamp_", [](const Tensor& x) { return clamp_(x, 0.6, 1.4); },
       [](const Tensor& x) { return clamp(x, 0.6, 1.4); }},
      {"masked_fill_", [=](const Tensor& x) { return masked_fill_(x, mask, 7); },
       [=](const Tensor& x) { return masked_fill(x, mask, 7); }},
      {"copy_", [=](const Tensor& x) { return copy_(x, other); },
       [=](const Tensor& x) { return add(mul(x, 0), other); }},
      {"fill_", [](const Tensor& x) { return fill_(x, 7); },
       [](const Tensor& x) { return add(mul(x, 0), 7); }},
      {"zero_", zero_, [](const Tensor& x) { return mul(x, 0); }},
  };
}

Tensor start() { return tensor({0.3F, 1.2F, 2.5F, 0.7F, 1.1F, 0.9F}).reshape({2, 3}); }

TEST(InPlace, ChangesValuesAndVersion) {
  for (const Pair& pair : pairs()) {
    SCOPED_TRACE(pair.name);
    const Tensor x = start();
    const Tensor view = x.view({6});
    const uint32_t version = x.version();
    const Tensor result = pair.in_place(x);
    EXPECT_TRUE(result.is_same(x));
    EXPECT_EQ(x.version(), version + 1);
    EXPECT_EQ(floats(x), floats(pair.out_of_place(start())));
    EXPECT_EQ(floats(view), floats(x));
  }
}

TEST(InPlace, WorksOnAnyStrides) {
  for (const Pair& pair : pairs()) {
    SCOPED_TRACE(pair.name);
    const Tensor base = full({3, 4}, 9);
    const Tensor x = slice(base.t(), 0, 1, 3);  // [2, 3], columns 1 and 2 of base
    copy_(x, start());
    pair.in_place(x);
    EXPECT_EQ(floats(x), floats(pair.out_of_place(start())));
    EXPECT_THAT(floats(base.select(1, 0)), ElementsAre(9, 9, 9));
    EXPECT_THAT(floats(base.select(1, 3)), ElementsAre(9, 9, 9));
  }
}

TEST(InPlace, RecordsTheSameGradients) {
  for (const Pair& pair : pairs()) {
    SCOPED_TRACE(pair.name);
    const auto gradient = [&](const auto& f) {
      const Tensor source = start().set_requires_grad();
      const Tensor x = mul(source, 1);
      const Tensor y = f(x);
      sum(mul(y, y)).backward();
      // Undefined where the old values have no part in the new ones: zero.
      return floats(source.grad().defined() ? source.grad() : zeros_like(source));
    };
    EXPECT_EQ(gradient(pair.in_place), gradient(pair.out_of_place));
  }
}

TEST(InPlace, OperandsGetTheirGradients) {
  const Tensor w = leaf({2, 3});
  const Tensor x = tensor({5, 7});
  mul_(x, w);  // x had no history and has one now
  EXPECT_TRUE(x.requires_grad());
  EXPECT_FALSE(x.is_leaf());
  add_(x, w);
  sum(x).backward();
  EXPECT_THAT(floats(w.grad()), ElementsAre(6, 8));
  EXPECT_THAT(floats(x), ElementsAre(12, 24));
}

TEST(InPlace, AccumulatesASumOverALoop) {
  const Tensor w = leaf({2, 3});
  const Tensor total = zeros({2});
  for (int i = 1; i <= 3; ++i) {
    add_(total, pow(w, i));
  }
  sum(total).backward();
  EXPECT_THAT(floats(w.grad()), ElementsAre(1 + 4 + 12, 1 + 6 + 27));
}

TEST(InPlace, TheOldValueIsAnInputOfItsOwn) {
  const Tensor w = leaf({2, 3});
  const Tensor x = mul(w, 1);
  mul_(x, clone(x));
  mul_(x, w);  // needs the old x and w
  sum(x).backward();
  EXPECT_THAT(floats(w.grad()), ElementsAre(12, 27));
}

TEST(InPlace, SecondDerivatives) {
  const Tensor w = leaf({2, 3});
  const Tensor x = mul(w, 1);
  pow_(x, 3);
  const Tensor first = grad(sum(x), {w}, {}, {.create_graph = true}).at(0);
  EXPECT_THAT(floats(grad(sum(first), {w}).at(0)), ElementsAre(12, 18));
}

TEST(InPlace, CopyTakesGradientsFromTheSourceOnly) {
  const Tensor old = leaf({1, 1});
  const Tensor source = leaf({4});
  const Tensor x = mul(old, 2);
  copy_(x, source);
  sum(mul(x, tensor({1, 2}))).backward();
  EXPECT_THAT(floats(source.grad()), ElementsAre(3));
  EXPECT_TRUE(!old.grad().defined() || floats(old.grad()) == std::vector<float>({0, 0}));
}

TEST(InPlace, CopyConvertsAndBroadcasts) {
  const Tensor x = zeros({2, 2}, kInt64);
  copy_(x, tensor({1.7F, -2.2F}));
  EXPECT_THAT(x.to_vector<int64_t>(), ElementsAre(1, -2, 1, -2));
  const Tensor w = leaf({1.5});
  const Tensor wide = zeros({2}, kFloat64);
  copy_(wide, w);
  sum(wide).backward();
  EXPECT_EQ(w.grad().dtype(), kFloat32);
  EXPECT_THAT(floats(w.grad()), ElementsAre(2));
}

TEST(InPlace, OperandsMayOverlap) {
  const Tensor x = tensor({1, 2, 3, 4});
  add_(slice(x, 0, 1, 4), slice(x, 0, 0, 3));
  EXPECT_THAT(floats(x), ElementsAre(1, 3, 5, 7));
  copy_(slice(x, 0, 0, 3), slice(x, 0, 1, 4));
  EXPECT_THAT(floats(x), ElementsAre(3, 5, 7, 7));
  const Tensor square_matrix = tensor({1, 2, 3, 4}).reshape({2, 2});
  copy_(square_matrix, square_matrix.t());
  EXPECT_THAT(floats(square_matrix), ElementsAre(1, 3, 2, 4));
  mul_(x, x);
  EXPECT_THAT(floats(x), ElementsAre(9, 25, 49, 49));
}

TEST(InPlace, DtypesWithinACategoryAreConverted) {
  const Tensor x = tensor({1, 2});
  add_(x, tensor(std::vector<double>{0.5, 0.25}, {2}));
  EXPECT_EQ(x.dtype(), kFloat32);
  EXPECT_THAT(floats(x), ElementsAre(1.5, 2.25));
  const Tensor n = tensor(std::vector<int32_t>{1, 2}, {2});
  mul_(n, tensor(std::vector<int64_t>{3, 4}, {2}));
  EXPECT_EQ(n.dtype(), kInt32);
  EXPECT_THAT(n.to_vector<int32_t>(), ElementsAre(3, 8));
}

TEST(InPlace, AHigherCategoryDoesNotFit) {
  const Tensor n = ones({2}, kInt64);
  EXPECT_THAT(message_of<TypeError>([&] {
                add_(n, tensor({1, 2}));
              }),
              Says("add_: a float32 result ... int64"));
  EXPECT_THAT(message_of<TypeError>([&] { mul_(n, 0.5); }), HasSubstr("does not fit"));
  EXPECT_THAT(message_of<TypeError>([&] { div_(n, 2); }), HasSubstr("does not fit"));
  EXPECT_THAT(message_of<TypeError>([&] { div_(n, n); }), HasSubstr("does not fit"));
  EXPECT_THAT(message_of<TypeError>([&] { add_(ones({2}, kBool), n); }), HasSubstr("does not fit"));
  EXPECT_THAT(message_of<TypeError>([&] { exp_(n); }), HasSubstr("exp_"));
  EXPECT_THAT(message_of<TypeError>([&] { neg_(ones({2}, kBool)); }), HasSubstr("neg_"));
  EXPECT_THAT(n.to_vector<int64_t>(), ElementsAre(1, 1));
  EXPECT_EQ(n.version(), 0U);
}

TEST(InPlace, TheShapeStays) {
  const Tensor x = tensor({1, 2});
  EXPECT_THAT(message_of<ValueError>([&] {
                add_(x, ones({3, 2}));
              }),
              Says("add_: ... [3, 2], x has [2]"));
  EXPECT_THROW(masked_fill_(x, ones({3, 2}, kBool), 0), ValueError);
  EXPECT_THROW(copy_(x, ones({3, 2})), ValueError);
  EXPECT_THROW(add_(ones({1}), x), ValueError);
  EXPECT_THROW(clamp_(x, 2, 1), ValueError);
  EXPECT_THROW(masked_fill_(x, ones({2}), 0), TypeError);
}

TEST(InPlace, ExpandedTensorsCannotBeChanged) {
  const Tensor x = ones({1, 2}).expand({3, 2});
  EXPECT_THAT(message_of<RuntimeError>([&] { add_(x, 1); }), HasSubstr("share memory"));
  EXPECT_THAT(message_of<RuntimeError>([&] { zero_(x); }), HasSubstr("clone()"));
}

TEST(InPlace, ALeafChangesOnlyWithoutRecording) {
  const Tensor w = leaf({1, 2});
  EXPECT_THAT(message_of<RuntimeError>([&] { add_(w, 1); }), HasSubstr("NoGradGuard"));
  EXPECT_THAT(message_of<RuntimeError>([&] { zero_(w); }), HasSubstr("leaf"));
  {
    const NoGradGuard guard;
    add_(w, 1);
  }
  EXPECT_THAT(floats(w), ElementsAre(2, 3));
  EXPECT_TRUE(w.is_leaf());
  EXPECT_EQ(w.version(), 1U);
  // A detached alias is not part of the graph.
  mul_(w.detach(), 2);
  EXPECT_THAT(floats(w), ElementsAre(4, 6));
}

TEST(InPlace, SharedMemoryOfAGraphCannotChange) {
  const Tensor w = leaf({1, 2});
  const Tensor view = slice(w, 0, 0, 1);
  EXPECT_THAT(message_of<RuntimeError>([&] { add_(view, 1); }), HasSubstr("shares its memory"));
  const Tensor x = mul(w, 2);
  const Tensor part = slice(x, 0, 0, 1);
  EXPECT_THROW(add_(x, 1), RuntimeError);
  const Tensor buffer = zeros({2});
  EXPECT_THROW(add_(slice(buffer, 0, 0, 1), slice(w, 0, 0, 1)), RuntimeError);
  // exp keeps its result for backward.
  const Tensor y = exp(w);
  EXPECT_THROW(add_(y, 1), RuntimeError);
  EXPECT_THROW(add_(ones({2}, kBool), w), TypeError);
}

// y is part of a graph, which a change of a view that it knows nothing of would make wrong.
TEST(InPlace, AViewMadeWithoutRecordingDoesNotChangeBehindAGraph) {
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = mul(x, 2);
  const auto changes = std::vector<std::function<Tensor(const Tensor&)>>{
      [](const Tensor& t) {
        return t.view({3, 1});
      },
      [](const Tensor& t) { return t.reshape({3}); },
      [](const Tensor& t) { return t.permute({0}); },
      [](const Tensor& t) { return t.slice(0, 0, 2); },
      [](const Tensor& t) { return t.select(0, 1); },
      [](const Tensor& t) { return t.unsqueeze(0); },
      [](const Tensor& t) { return t.expand({3}); },
      [](const Tensor& t) { return split(t, 1, 0)[2]; },
      [](const Tensor& t) {
        return t.view({3, 1}).slice(0, 0, 2);
      }};
  for (const auto& make : changes) {
    for (const Tensor& base : {x, y}) {
      Tensor view;
      {
        const NoGradGuard guard;
        view = make(base);
        mul_(view, 1);  // here it may
      }
      EXPECT_THAT(message_of<RuntimeError>([&] { mul_(view, 3); }),
                  HasSubstr("nothing was recorded"));
      EXPECT_THAT(message_of<RuntimeError>([&] { mul_(view.unsqueeze(0), 3); }),
                  HasSubstr("nothing was recorded"));
      mul_(view.detach(), 1);
      mul_(clone(view), 3);
    }
  }
  EXPECT_THAT(floats(y), ElementsAre(2, 4, 6));
  const NoGradGuard guard;
  const Tensor plain = tensor({1, 2, 3});
  const Tensor view = plain.slice(0, 0, 2);
  const GradModeGuard recording(true);
  mul_(view, 3);  // no graph, nothing to go wrong
  EXPECT_THAT(floats(plain), ElementsAre(3, 6, 3));
}

TEST(InPlace, ViewsThatOneOpMadeDoNotChangeOnTheTape) {
  const auto part = [](const Tensor& x) {
    return split(mul(x, 2), 1, 0)[0];
  };  // the last that is left
  const Tensor x = leaf({1, 2});
  EXPECT_THAT(message_of<RuntimeError>([&] { mul_(part(x), 3); }), HasSubstr("several views"));
  EXPECT_THAT(message_of<RuntimeError>([&] {
                mul_(part(x).view({1, 1}), 3);
              }),
              HasSubstr("several views"));
  EXPECT_THAT(message_of<RuntimeError>([&] {
                mul_(chunk(tensor({1.0, 2.0}), 2, 0)[1], x.slice(0, 0, 1));
              }),
              HasSubstr("several views"));
  const Tensor plain = tensor({1, 2});
  mul_(split(plain, 1, 0)[1], 3);
  EXPECT_THAT(floats(plain), ElementsAre(1, 6));
}

TEST(InPlace, AnOpInPlaceIsHeldToWhatItsDerivativeGoesBy) {
  const Tensor x = leaf({1, 2});
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  for (const Binary change : {Binary(mul_), Binary(div_)}) {
    const Tensor y = mul(x, 2);
    change(y, y);
    EXPECT_THAT(message_of<RuntimeError>([&] { sum(y).backward(); }),
                HasSubstr("changed in place"));
  }
  for (const auto& change : {exp_, sqrt_, rsqrt_, reciprocal_, tanh_, sigmoid_}) {
    const Tensor y = mul(x, 2);
    change(y);
    sum(y).backward({}, true);
    mul_(y, 3);
    EXPECT_THAT(message_of<RuntimeError>([&] { sum(y).backward(); }),
                HasSubstr("changed in place"));
  }
}

TEST(InPlace, ASavedInputIsNoticedInBackward) {
  const Tensor w = leaf({1, 2});
  const Tensor x = tensor({3, 4});
  const Tensor y = mul(w, x);
  mul_(x, 2);
  EXPECT_THAT(message_of<RuntimeError>([&] { sum(y).backward(); }), HasSubstr("in place"));
}

TEST(InPlace, ASavedInputCannotJoinTheGraphThatSavedIt) {
  RankContext context;
  const RankContextGuard guard(context);
  {
    const Tensor w = leaf({1, 2});
    const Tensor x = mul(w, 3);
    const Tensor constant = tensor({3.0F, 4.0F});
    const Tensor y = mul(mul(w, x), constant);
    // x and the constant would own the graph that owns them.
    EXPECT_THAT(message_of<RuntimeError>([&] { add_(x, y); }), HasSubstr("kept for backward"));
    EXPECT_THROW(add_(constant, y), RuntimeError);
    sum(y).backward();
    EXPECT_THAT(floats(w.grad()), ElementsAre(18, 48));
    add_(x, y);  // the graph has been released
  }
  EXPECT_EQ(memory_stats().current_bytes, 0);
}

TEST(InPlace, RecordedIntegersAreRefused) {
  const Tensor w = leaf({1, 2});
  EXPECT_THAT(message_of<TypeError>([&] { copy_(zeros({2}, kInt64), w); }),
              Says("cannot hold ... gradient"));
}

}  // namespace
}  // namespace inplace_test
}  // namespace tapestry
