#include "autograd/tape/checkpoint.h"

#include <array>

#include "autograd/tensor/rank_context.h"
#include "tests/autograd/tape/tape_test_util.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Checkpoint, GivesTheSameGradients) {
  const Tensor w = leaf({0.5F, -1});
  const Tensor plain_x = leaf({1, 2});
  const auto body = [&](const TensorList& in) { return tanh(in[0] * w) * in[1]; };
  const Tensor scale = leaf({3, 4});
  const Tensor plain = body({plain_x, scale});
  sum(plain).backward();
  const auto expected_x = values(plain_x.grad());
  const auto expected_w = values(w.grad());
  const auto expected_scale = values(scale.grad());
  for (const Tensor& t : {plain_x, w, scale}) {
    t.set_grad({});
  }
  const Tensor y = checkpoint(body, {plain_x, scale});
  EXPECT_EQ(values(y), values(plain));
  sum(y).backward();
  EXPECT_EQ(values(plain_x.grad()), expected_x);
  EXPECT_EQ(values(w.grad()), expected_w);
  EXPECT_EQ(values(scale.grad()), expected_scale);
}

TEST(Checkpoint, ReachesParametersWithoutADifferentiableInput) {
  const Tensor w = leaf({2});
  const Tensor y = checkpoint([&](const TensorList& in) { return in[0] * w; }, {tensor({3})});
  EXPECT_TRUE(y.requires_grad());
  sum(y).backward();
  EXPECT_THAT(values(w.grad()), ElementsAre(3));
}

TEST(Checkpoint, IntegerAndMissingInputs) {
  const Tensor x = leaf({2});
  const auto body = [](const TensorList& in) {
    EXPECT_FALSE(in[2].defined());
    return in[0] * in[1].to(kFloat32);
  };
  sum(checkpoint(body, {x, full({1}, 5, kInt64), Tensor()})).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(5));
}

TEST(Checkpoint, RunsTheFunctionAgain) {
  const Tensor x = leaf({2});
  int calls = 0;
  const auto body = [&](const TensorList& in) {
    ++calls;
    return in[0] * in[0];
  };
  const Tensor y = checkpoint(body, {x});
  EXPECT_EQ(calls, 1);
  sum(y).backward();
  EXPECT_EQ(calls, 2);
  {
    const NoGradGuard guard;
    checkpoint(body, {x});
  }
  EXPECT_EQ(calls, 3);
}

TEST(Checkpoint, ReplaysTheGenerator) {
  manual_seed(7);
  const Tensor x = leaf({1});
  std::vector<uint64_t> offsets;
  const auto body = [&](const TensorList& in) {
    offsets.push_back(RankContext::current().default_generator().reserve(10).offset);
    return in[0] * 2;
  };
  const Tensor y = checkpoint(body, {x});
  const Tensor z = checkpoint(body, {y});
  const Generator::State after = RankContext::current().default_generator().state();
  sum(z).backward();
  EXPECT_THAT(offsets, ElementsAre(0, 10, 10, 0));
  EXPECT_EQ(RankContext::current().default_generator().state(), after);
}

TEST(Checkpoint, AFailureInTheRecomputationPutsTheGeneratorBack) {
  manual_seed(7);
  const Tensor x = leaf({1});
  int calls = 0;
  const Tensor y = checkpoint(
      [&](const TensorList& in) {
        check<ValueError>(++calls == 1, "second call");
        return in[0] * 2;
      },
      {x});
  RankContext::current().default_generator().reserve(5);
  const Generator::State before = RankContext::current().default_generator().state();
  EXPECT_THROW(sum(y).backward(), ValueError);
  EXPECT_EQ(RankContext::current().default_generator().state(), before);
  EXPECT_TRUE(grad_enabled());
}

TEST(Checkpoint, NeedsLessMemory) {
  constexpr int64_t kNumel = 10000;
  const auto peak = [](bool with_checkpoints) {
    RankContext context;
    const RankContextGuard guard(context);
    const Tensor x = ones({kNumel}).set_requires_grad();
    const auto block = [](const TensorList& in) {
      Tensor y = in[0];
      for (int i = 0; i < 10; ++i) {
        y = tanh(y);
      }
      return y;
    };
    Tensor y = x;
    for (int i = 0; i < 5; ++i) {
      y = with_checkpoints ? checkpoint(block, {y}) : block({y});
    }
    sum(y).backward();
    return memory_stats().peak_bytes;
  };
  EXPECT_LT(peak(true), peak(false) / 2);
}

TEST(Checkpoint, Nests) {
  const Tensor x = leaf({2});
  const auto inner = [](const TensorList& in) { return in[0] * in[0]; };
  const auto outer = [&](const TensorList& in) { return checkpoint(inner, {in[0] * 3}); };
  sum(checkpoint(outer, {x})).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(36));
}

TEST(Checkpoint, GradTouchesNoLeaf) {
  const Tensor x = leaf({2});
  const Tensor w = leaf({3});
  const auto body = [&](const TensorList& in) { return in[0] * in[0] * w; };
  const Tensor y = sum(checkpoint(body, {x}));
  EXPECT_THAT(values(grad(y, {x}, {}, {.retain_graph = true})[0]), ElementsAre(12));
  EXPECT_FALSE(w.grad().defined());
  EXPECT_FALSE(x.grad().defined());
  EXPECT_THAT(values(grad(y, {w}, {}, {.retain_graph = true})[0]), ElementsAre(4));
  EXPECT_FALSE(w.grad().defined());
  y.backward();
  EXPECT_THAT(values(w.grad()), ElementsAre(4));
}

TEST(Checkpoint, PostAccumulateHooksFireOncePerRecomputedFunction) {
  const Tensor w = leaf({3});
  std::vector<float> seen;
  w.register_post_accumulate_grad_hook(
      [&](const Tensor& p) { seen.push_back(static_cast<float>(p.grad().item())); });
  const auto body = [&](const TensorList& in) { return in[0] + w; };
  sum(checkpoint(body, {checkpoint(body, {tensor({1})})})).backward();
  EXPECT_THAT(seen, ElementsAre(1, 2));
}

TEST(Checkpoint, UsedTwiceWithRetainGraph) {
  const Tensor x = leaf({2});
  const Tensor y = sum(checkpoint([](const TensorList& in) { return in[0] * in[0]; }, {x}));
  y.backward({}, true);
  y.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(8));
  EXPECT_THROW(y.backward(), RuntimeError);
}

TEST(Checkpoint, ConstantResult) {
  const Tensor x = leaf({2});
  sum(checkpoint([](const TensorList&) { return tensor({5}); }, {x}) + x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(1));
}

TEST(Checkpoint, ChangedInputsAreNoticed) {
  const Tensor x = leaf({2});
  const Tensor c = tensor({3});
  const Tensor y = checkpoint([](const TensorList& in) { return in[0] * in[1]; }, {x, c});
  c.bump_version();
  EXPECT_THAT(message_of<RuntimeError>([&] { sum(y).backward(); }), HasSubstr("checkpoint"));
}

TEST(Checkpoint, GradReachesALeafInsideAndOutside) {
  const Tensor x = leaf({2});
  const Tensor w = leaf({3});
  const auto body = [&](const TensorList& in) { return in[0] * in[0] * w; };
  const Tensor y = sum(checkpoint(body, {x * w}) * w);  // x^2 w^4
  EXPECT_THAT(values(grad(y, {w}, {}, {.retain_graph = true})[0]), ElementsAre(4 * 4 * 27));
  EXPECT_THAT(values(grad(y, {w, x}, {}, {.retain_graph = true})[1]), ElementsAre(2 * 2 * 81));
  const Tensor unrelated = leaf({1});
  EXPECT_FALSE(grad(y, {unrelated}, {}, {.retain_graph = true}, true)[0].defined());
  EXPECT_THROW(grad(y, {unrelated}), RuntimeError);
}

TEST(Checkpoint, ANestedFunctionUsesAnInputOfTheOuterOne) {
  const Tensor x = leaf({2});
  const auto outer = [](const TensorList& in) {
    return checkpoint([x = in[0]](const TensorList& inner) { return inner[0] * x; }, {in[0] * 3});
  };
  sum(checkpoint(outer, {x})).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(12));
  EXPECT_THAT(values(grad(sum(checkpoint(outer, {x})), {x})[0]), ElementsAre(12));
}

// d/dx and d/dw of the sum of squares of first gradients, with and without checkpoint().
TEST(Checkpoint, SecondDerivatives) {
  const auto run = [](bool recompute, bool into_leaves) {
    const Tensor x = tensor(std::vector<double>{0.3, -0.8}, {2}).set_requires_grad();
    const Tensor w = tensor(std::vector<double>{0.5, 1.5}, {2}).set_requires_grad();
    const auto body = [&](const TensorList& in) { return tanh(in[0] * w) * in[0]; };
    const TensorList in = {exp(x)};  // not a leaf
    const Tensor y = sum(recompute ? checkpoint(body, in) : body(in));
    TensorList first;
    if (into_leaves) {
      y.backward({}, false, /*create_graph=*/true);
      first = {x.grad(), w.grad()};
      x.set_grad({});
      w.set_grad({});
    } else {
      first = grad(y, {x, w}, {}, {.create_graph = true});
    }
    (sum(square(first[0])) + sum(square(first[1]))).backward();
    return std::array{x.grad().to_vector<double>(), w.grad().to_vector<double>()};
  };
  const auto expected = run(false, false);
  for (const bool into_leaves : {false, true}) {
    const auto got = run(true, into_leaves);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_THAT(got[i], ::testing::Pointwise(::testing::DoubleNear(1e-12), expected[i]));
    }
  }
}

TEST(Checkpoint, ThirdDerivative) {
  const Tensor x = leaf({2});
  const auto cube = [](const TensorList& in) { return in[0] * in[0] * in[0] * in[0]; };
  const Tensor y = sum(checkpoint(cube, {x}));
  const Tensor first = grad(y, {x}, {}, {.create_graph = true})[0];
  const Tensor second = grad(first, {x}, {}, {.create_graph = true})[0];
  EXPECT_THAT(values(second), ElementsAre(48));
  EXPECT_THAT(values(grad(second, {x})[0]), ElementsAre(48));
}

TEST(Checkpoint, SeveralResults) {
  const Tensor w = leaf({2, 3});
  const auto body = [&](const TensorList& in) {
    return TensorList{in[0] * w, in[1], tensor({7}), in[0] + in[1]};
  };
  const auto gradients = [&](bool recompute) {
    const Tensor a = leaf({4, 5});
    const Tensor b = leaf({6, 7});
    w.set_grad({});
    const TensorList in = {a * 1, b * 1};
    const TensorList out = recompute ? checkpoint(body, in) : body(in);
    EXPECT_THAT(values(out[1]), ElementsAre(6, 7));
    EXPECT_THAT(values(out[2]), ElementsAre(7));
    (sum(out[0] * out[0]) + sum(out[1] * out[3])).backward();
    return std::array{values(a.grad()), values(b.grad()), values(w.grad())};
  };
  EXPECT_EQ(gradients(true), gradients(false));
  // Of which one is used: nothing arrives for the others.
  const Tensor a = leaf({4, 5});
  sum(checkpoint(body, {a, leaf({6, 7})})[3]).backward();
  EXPECT_THAT(values(a.grad()), ElementsAre(1, 1));
  const Tensor second = grad(sum(checkpoint(body, {a, a})[0]), {a}, {}, {.create_graph = true})[0];
  EXPECT_THAT(values(second), ElementsAre(2, 3));
}

TEST(Checkpoint, AFunctionMustGiveAsManyResultsAgain) {
  int calls = 0;
  const auto body = [&](const TensorList& in) { return TensorList(++calls == 1 ? 2 : 1, in[0]); };
  const TensorList out = checkpoint(body, {leaf({3})});
  EXPECT_THAT(message_of<RuntimeError>([&] { sum(out[0]).backward(); }),
              ::testing::HasSubstr("gave 2 results, and 1 when it ran again"));
}

}  // namespace
}  // namespace tapestry
