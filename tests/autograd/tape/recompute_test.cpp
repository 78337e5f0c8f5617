#include "autograd/tape/recompute.h"

#include <array>

#include "autograd/ops/activation.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/random.h"
#include "autograd/tape/checkpoint.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/tape/tape_test_util.h"

namespace tapestry {
namespace recompute_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Counts its runs; keeps its input.
struct Square {
  static constexpr OpName name = "recompute_test.square";
  int* runs;
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    ++*runs;
    x.save(x_);
    return mul(x_, x_);
  }
  Tensor backward(const Tensor& dy) const { return dy * x.get() * 2; }
};
Tensor square_of(const Tensor& x, int& runs) { return apply_op(Square{&runs, {}}, x); }

// Two results of one op.
struct Both {
  static constexpr OpName name = "recompute_test.both";
  int* runs;
  SavedTensor sum, product;
  std::array<Tensor, 2> forward(const Tensor& x) {
    ++*runs;
    return {sum.save_output(add(x, x), 0), product.save_output(mul(x, x), 1)};
  }
  Tensor backward(const TensorList& dys, NeedsGrad /*needs*/) const {
    return dys[0] * 2 + dys[1] * sum.get();
  }
};

// Messages from nowhere.
struct Talk {
  static constexpr OpName name = "recompute_test.talk";
  static constexpr bool communicates = true;
  int* runs;
  Tensor forward(const Tensor& x) {
    ++*runs;
    return clone(x);
  }
  Tensor backward(const Tensor& dy) const { return dy; }
};

int64_t activation_bytes() {
  return RankContext::current().allocator().stats().current_by_kind[static_cast<int>(
      MemoryKind::kActivation)];
}

TEST(Recompute, ADroppedValueIsMadeAgainWhenItIsTouched) {
  const Tensor x = leaf({2, 3});
  int runs = 0;
  RecomputedValues values;
  Tensor y;
  {
    const RecomputeScope scope(&values);
    y = square_of(x, runs);
  }
  const int64_t before = activation_bytes();
  EXPECT_EQ(values.drop(), 8);
  EXPECT_LT(activation_bytes(), before);
  EXPECT_TRUE(y.storage()->is_dropped());
  EXPECT_EQ(runs, 1);
  EXPECT_THAT(tapestry::values(y), ElementsAre(4, 9));
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(activation_bytes(), before);
  sum(y).backward();
  EXPECT_EQ(runs, 2);  // nobody needed it again
  EXPECT_THAT(tapestry::values(x.grad()), ElementsAre(4, 6));
}

TEST(Recompute, OnlyWhatBackwardReadsIsMadeAgain) {
  const Tensor x = leaf({2});
  std::array<int, 3> runs = {};
  RecomputedValues values;
  Tensor y;
  {
    const RecomputeScope scope(&values);
    y = square_of(square_of(square_of(x, runs[0]), runs[1]), runs[2]);
  }
  values.keep(y);
  values.drop();
  sum(y).backward();
  EXPECT_THAT(runs, ElementsAre(2, 2, 1));  // the last one's result is nobody's input
  EXPECT_THAT(tapestry::values(x.grad()), ElementsAre(8 * 128));
}

TEST(Recompute, AnOpWithSeveralResultsRunsOnce) {
  const Tensor x = leaf({3});
  int runs = 0;
  RecomputedValues values;
  std::array<Tensor, 2> out;
  {
    const RecomputeScope scope(&values);
    out = apply_op(Both{&runs, {}, {}}, x);
  }
  values.drop();
  EXPECT_THAT(tapestry::values(out[1]), ElementsAre(9));
  EXPECT_FALSE(out[0].storage()->is_dropped());
  EXPECT_THAT(tapestry::values(out[0]), ElementsAre(6));
  EXPECT_EQ(runs, 2);
}

TEST(Recompute, ViewsAndInputsAreLeftAlone) {
  const Tensor x = leaf({1, 2, 3, 4}) * 1;
  int runs = 0;
  RecomputedValues values;
  {
    const RecomputeScope scope(&values);
    const Tensor same = x.view({2, 2}).transpose(0, 1);
    sum(square_of(same, runs));
  }
  values.drop();
  EXPECT_FALSE(x.storage()->is_dropped());
}

TEST(Recompute, GradientsHaveTheSameBitsAndHooksFireOnce) {
  const Tensor w = rand({6, 6}).set_requires_grad();
  const auto run = [&](bool recompute, int& hooks) {
    manual_seed(5);
    w.set_grad({});
    HookHandle handle = w.register_post_accumulate_grad_hook([&](const Tensor&) { ++hooks; });
    const Tensor x = rand({4, 6}).set_requires_grad();
    RecomputedValues values;
    Tensor y = x;
    {
      const RecomputeScope scope(recompute ? &values : nullptr);
      for (int i = 0; i < 3; ++i) {
        y = y + dropout(gelu(linear(y, w)), 0.5);  // draws where it stands, once
      }
    }
    EXPECT_EQ(values.drop() > 0, recompute);
    sum(y * y).backward();
    handle.remove();
    EXPECT_EQ(is_recomputing(), false);
    TensorList out = {x.grad(), w.grad()};
    return out;
  };
  int plain_hooks = 0;
  int hooks = 0;
  const TensorList plain = run(false, plain_hooks);
  const TensorList again = run(true, hooks);
  EXPECT_EQ(plain_hooks, 1);
  EXPECT_EQ(hooks, 1);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(values(again[i]), values(plain[i])) << i;
  }
}

TEST(Recompute, RetainedGraphsRunTwice) {
  const Tensor x = leaf({3});
  int runs = 0;
  RecomputedValues values;
  Tensor y;
  {
    const RecomputeScope scope(&values);
    y = square_of(square_of(x, runs), runs);
  }
  values.drop();
  const Tensor loss = sum(y);
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_THAT(tapestry::values(x.grad()), ElementsAre(2 * 4 * 27));
}

TEST(Recompute, GradientsCanBeDifferentiated) {
  const Tensor x = leaf({3});
  RecomputedValues values;
  Tensor y;
  {
    const RecomputeScope scope(&values);
    y = x * x * x * x;
  }
  values.drop();
  const Tensor first = grad(sum(y), {x}, {}, {.create_graph = true})[0];
  EXPECT_THAT(tapestry::values(first), ElementsAre(4 * 27));
  EXPECT_THAT(tapestry::values(grad(sum(first), {x})[0]), ElementsAre(12 * 9));
}

TEST(Recompute, ScopesNest) {
  const Tensor x = leaf({3});
  std::array<int, 3> runs = {};
  RecomputedValues outer;
  RecomputedValues inner;
  Tensor y;
  {
    const RecomputeScope scope(&outer);
    EXPECT_EQ(noted_values(), &outer);
    y = square_of(x, runs[0]);
    {
      const RecomputeScope kept(nullptr);
      y = square_of(y, runs[1]);
    }
    {
      const RecomputeScope other(&inner);
      y = square_of(y, runs[2]);
    }
  }
  EXPECT_EQ(noted_values(), nullptr);
  outer.drop();
  EXPECT_FALSE(y.storage()->is_dropped());
  inner.drop();
  EXPECT_TRUE(y.storage()->is_dropped());
  sum(y * y).backward();
  EXPECT_THAT(runs, ElementsAre(2, 1, 2));
}

TEST(Recompute, ACheckpointInAScopeIsRunAgainByItself) {
  const Tensor x = leaf({3});
  int runs = 0;
  std::vector<bool> again;
  const auto body = [&](const TensorList& in) {
    again.push_back(is_recomputing());
    return square_of(square_of(in[0], runs), runs);
  };
  RecomputedValues values;
  Tensor y;
  {
    const RecomputeScope scope(&values);
    y = checkpoint(body, {square_of(x, runs)});
  }
  values.drop();
  sum(y).backward();
  EXPECT_THAT(tapestry::values(x.grad()), ElementsAre(8 * 2187));
  EXPECT_THAT(again, ElementsAre(false, true));
}

TEST(Recompute, AScopeInACheckpointWorks) {
  const Tensor x = leaf({3});
  int runs = 0;
  const auto body = [&](const TensorList& in) {
    RecomputedValues values;
    Tensor y;
    {
      const RecomputeScope scope(&values);
      y = square_of(square_of(in[0], runs), runs);
    }
    values.drop();
    return y * 1;
  };
  sum(checkpoint(body, {x})).backward();
  EXPECT_THAT(tapestry::values(x.grad()), ElementsAre(4 * 27));
}

TEST(Recompute, CommunicationIsRepeatedUnlessItIsNotToBe) {
  for (const bool repeats : {true, false}) {
    const Tensor x = leaf({3});
    int squares = 0;
    int messages = 0;
    RecomputedValues values;
    values.set_repeats_communication(repeats);
    Tensor y;
    {
      const RecomputeScope scope(&values);
      y = square_of(apply_op(Talk{&messages}, square_of(x, squares)), squares);
    }
    values.keep(y);
    values.drop();
    sum(y).backward();
    EXPECT_EQ(messages, repeats ? 2 : 1);
    EXPECT_EQ(squares, repeats ? 3 : 2);
    EXPECT_THAT(tapestry::values(x.grad()), ElementsAre(4 * 27));
  }
}

TEST(Recompute, AValueMayComeFromElsewhere) {
  const Tensor x = leaf({3, 4});
  int runs = 0;
  int calls = 0;
  const Tensor y = x * 2;
  const Tensor z = square_of(y, runs);
  RecomputedValues values;
  values.add(y, [&] {
    ++calls;
    EXPECT_TRUE(is_recomputing());
    return tensor({6, 8});
  });
  values.drop();
  EXPECT_TRUE(y.storage()->is_dropped());
  sum(z).backward();
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(tapestry::values(x.grad()), ElementsAre(24, 32));
}

TEST(Recompute, WhatIsNotDroppedStays) {
  const Tensor x = leaf({3});
  int runs = 0;
  Tensor y;
  {
    RecomputedValues values;
    const RecomputeScope scope(&values);
    y = square_of(x, runs);
  }
  EXPECT_FALSE(y.storage()->drop());
  sum(square_of(y, runs)).backward();
  EXPECT_EQ(runs, 2);
}

TEST(Recompute, ChangesInPlaceAreKeptOrNoticed) {
  const Tensor x = leaf({3}) * 1;
  int runs = 0;
  RecomputedValues values;
  Tensor y;
  Tensor z;
  {
    const RecomputeScope scope(&values);
    y = square_of(x, runs);
    z = square_of(y, runs);
  }
  {
    const NoGradGuard guard;
    y.index_put_({}, 7);
  }
  values.drop();
  EXPECT_FALSE(y.storage()->is_dropped());
  EXPECT_TRUE(z.storage()->is_dropped());
  EXPECT_THAT(message_of<RuntimeError>([&] { tapestry::values(z); }),
              HasSubstr("was changed in place"));
}

TEST(Recompute, WhatIsMadeAgainMustFit) {
  const Tensor y = leaf({3, 4}) * 2;
  RecomputedValues values;
  values.add(y, [] { return tensor({1}); });
  values.drop();
  EXPECT_THAT(message_of<RuntimeError>([&] { tapestry::values(y); }),
              HasSubstr("made again, a value of 8 bytes is float32 [1]"));
}

TEST(Recompute, NoMemoryStaysBehind) {
  const int64_t before = activation_bytes();
  {
    const Tensor x = rand({8, 8}).set_requires_grad();
    RecomputedValues values;
    Tensor y = x;
    {
      const RecomputeScope scope(&values);
      for (int i = 0; i < 4; ++i) {
        y = gelu(matmul(y, x));
      }
    }
    values.drop();
    EXPECT_LE(activation_bytes() - before, 8 * 8 * 4);  // x
    sum(y).backward();
  }
  EXPECT_EQ(activation_bytes(), before);
}

}  // namespace
}  // namespace recompute_test
}  // namespace tapestry
