// User-defined ops, saved tensors, the registry.
#include "autograd/tape/op.h"

#include <algorithm>

#include "autograd/tape/gradcheck.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/tape/tape_test_util.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Scale {
  static constexpr OpName name = "test_scale";
  double factor;
  Tensor forward(const Tensor& x) { return x * factor; }
  Tensor backward(const Tensor& dy) const { return dy * factor; }
};

// Two inputs, one of which may be left out.
struct Affine {
  static constexpr OpName name = "test_affine";
  SavedTensor x, w;
  bool has_bias = false;
  std::vector<bool>* needed = nullptr;
  Tensor forward(const Tensor& x_, const Tensor& w_, const Tensor& b) {
    x.save(x_);
    w.save(w_);
    has_bias = b.defined();
    const Tensor y = x_ * w_;
    return has_bias ? y + b : y;
  }
  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    if (needed != nullptr) {
      *needed = {needs[0], needs[1], needs[2]};
    }
    return {dy * w.get(), dy * x.get(), has_bias ? dy : Tensor()};
  }
};

// Several inputs and outputs, one of them of integers.
struct Parts {
  static constexpr OpName name = "test_parts";
  std::vector<bool>* arrived = nullptr;
  size_t count = 0;
  TensorList forward(const TensorList& in) {
    count = in.size();
    return {in[0] + in[1], in[0].to(kInt64), in[0] - in[1]};
  }
  TensorList backward(const TensorList& dys, NeedsGrad needs) const {
    if (arrived != nullptr) {
      arrived->clear();
      for (const Tensor& dy : dys) {
        arrived->push_back(dy.defined());
      }
    }
    EXPECT_EQ(needs.size(), count);
    Tensor da;
    Tensor db;
    if (dys[0].defined()) {
      da = dys[0];
      db = dys[0];
    }
    if (dys[2].defined()) {
      da = da.defined() ? da + dys[2] : dys[2];
      db = db.defined() ? db - dys[2] : -dys[2];
    }
    return {da, db};
  }
};

struct NoDerivative {
  static constexpr OpName name = "test_no_derivative";
  static constexpr bool differentiable = false;
  Tensor forward(const Tensor& x) { return x * 2; }
};

// Names need not note where the op is written.
struct NamedByView {
  static constexpr std::string_view name = "test_named_by_view";
  Tensor forward(const Tensor& x) { return x * 2; }
  Tensor backward(const Tensor& dy) const { return dy * 2; }
};
struct NamedByText {
  static constexpr const char* name = "test_named_by_text";
  Tensor forward(const Tensor& x) { return x * 3; }
  Tensor backward(const Tensor& dy) const { return dy * 3; }
};

struct Identity {
  static constexpr OpName name = "test_identity";
  Tensor forward(const Tensor& x) { return x; }
  Tensor backward(const Tensor& dy) const { return dy * 10; }
};

struct WrongShape {
  static constexpr OpName name = "test_wrong_shape";
  Tensor forward(const Tensor& x) { return x * 2; }
  Tensor backward(const Tensor& dy) const { return dy.unsqueeze(0); }
};

struct WrongDType {
  static constexpr OpName name = "test_wrong_dtype";
  Tensor forward(const Tensor& x) { return x * 2; }
  Tensor backward(const Tensor& dy) const { return dy.to(kFloat64); }
};

struct TooMany {
  static constexpr OpName name = "test_too_many";
  Tensor forward(const Tensor& x) { return x * 2; }
  TensorList backward(const Tensor& dy) const { return {dy, dy}; }
};

struct TooFew {
  static constexpr OpName name = "test_too_few";
  Tensor forward(const Tensor& x, const Tensor& y) { return x * y; }
  Tensor backward(const Tensor& dy) const { return dy; }
};

// Saves its output.
struct Root {
  static constexpr OpName name = "test_root";
  SavedTensor y;
  Tensor forward(const Tensor& x) { return y.save_output(sqrt(x)); }
  Tensor backward(const Tensor& dy) const { return dy / (2 * y.get()); }
};

TEST(Op, OneInput) {
  const Tensor x = leaf({1, 2});
  const Tensor y = apply_op(Scale{3}, x);
  EXPECT_EQ(grad_fn(y)->name(), "test_scale");
  sum(y).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(3, 3));
  EXPECT_EQ(grad_fn(apply_op(Scale{3}, tensor({1}))), nullptr);
}

TEST(Op, SeveralInputsOneOfThemLeftOut) {
  const Tensor x = leaf({1, 2});
  const Tensor w = tensor({5, 6});
  const Tensor b = leaf({7, 8});
  std::vector<bool> needed;
  sum(apply_op(Affine{{}, {}, false, &needed}, x, w, b)).backward();
  EXPECT_THAT(needed, ElementsAre(true, false, true));
  EXPECT_THAT(values(x.grad()), ElementsAre(5, 6));
  EXPECT_THAT(values(b.grad()), ElementsAre(1, 1));
  sum(apply_op(Affine{{}, {}, false, &needed}, x, w, Tensor())).backward();
  EXPECT_THAT(needed, ElementsAre(true, false, false));
  EXPECT_THAT(values(x.grad()), ElementsAre(10, 12));
}

TEST(Op, SeveralOutputsWithUndefinedGradients) {
  const Tensor a = leaf({5});
  const Tensor b = leaf({3});
  std::vector<bool> arrived;
  TensorList parts = apply_op(Parts{&arrived}, TensorList{a, b});
  EXPECT_FALSE(parts[1].requires_grad());  // integers are cut off
  sum(parts[2]).backward();
  EXPECT_THAT(arrived, ElementsAre(false, false, true));
  EXPECT_THAT(values(b.grad()), ElementsAre(-1));
  parts = apply_op(Parts{&arrived}, TensorList{a, b});
  sum(parts[0] * parts[2]).backward();  // a^2 - b^2
  EXPECT_THAT(arrived, ElementsAre(true, false, true));
  EXPECT_THAT(values(a.grad()), ElementsAre(1 + 10));
  EXPECT_THAT(values(b.grad()), ElementsAre(-1 - 6));
}

TEST(Op, HooksOnEachOfSeveralOutputs) {
  const Tensor a = leaf({5});
  const Tensor b = leaf({3});
  const TensorList parts = apply_op(Parts{}, TensorList{a, b});
  std::vector<float> seen;
  for (const size_t i : {0U, 2U}) {
    parts[i].register_hook([&seen](const Tensor& g) {
      seen.push_back(static_cast<float>(g.item()));
      return Tensor();
    });
  }
  sum(parts[0] * 2 + parts[2] * 3).backward();
  EXPECT_THAT(seen, ElementsAre(2, 3));
}

TEST(Op, GradientsOfIntermediateOutputsOfOneNode) {
  const Tensor a = leaf({5});
  const Tensor b = leaf({3});
  const TensorList parts = apply_op(Parts{}, TensorList{a, b});
  const TensorList g = grad(sum(parts[0] * 2 + parts[2] * 3), {parts[2], parts[0], a});
  EXPECT_THAT(values(g[0]), ElementsAre(3));
  EXPECT_THAT(values(g[1]), ElementsAre(2));
  EXPECT_THAT(values(g[2]), ElementsAre(5));
}

TEST(Op, WithoutBackwardIsCutOff) {
  const Tensor x = leaf({2});
  const Tensor y = apply_op(NoDerivative{}, x);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(y.item(), 4);
}

TEST(Op, ReturningAnInputMakesANewHandle) {
  const Tensor x = leaf({2});
  const Tensor y = apply_op(Identity{}, x);
  EXPECT_FALSE(y.is_same(x));
  EXPECT_EQ(y.raw(), x.raw());
  EXPECT_TRUE(x.is_leaf());
  sum(y).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(10));
}

TEST(Op, AWrongGradientIsReported) {
  const Tensor x = leaf({1, 2});
  EXPECT_THAT(message_of<ValueError>([&] { sum(apply_op(WrongShape{}, x)).backward(); }),
              Says("test_wrong_shape: ... gradient ... float32 [1, 2], ... float32 [2]"));
  EXPECT_THAT(message_of<TypeError>([&] { sum(apply_op(WrongDType{}, x)).backward(); }),
              Says("test_wrong_dtype: ... gradient ... is float64"));
  EXPECT_THAT(message_of<RuntimeError>([&] { sum(apply_op(TooMany{}, x)).backward(); }),
              HasSubstr("test_too_many: backward returned 2 gradients for 1 inputs"));
  EXPECT_THAT(message_of<RuntimeError>([&] { sum(apply_op(TooFew{}, x, x)).backward(); }),
              HasSubstr("test_too_few: backward returned 1 gradients for 2 inputs"));
  EXPECT_FALSE(x.grad().defined());
}

TEST(Op, VjpGivesHigherOrders) {
  const Tensor x = tensor(std::vector<double>{0.3, 0.8}, {2}).set_requires_grad();
  const Tensor dy = tensor(std::vector<double>{1, 2}, {2}).set_requires_grad();
  const auto f = [](const TensorList& in) { return sin(in[0]) * in[1]; };
  const auto gradients = [&](const TensorList& in) { return vjp(f, in[1], {in[0], in[0]}); };
  EXPECT_TRUE(gradcheck(gradients, {x, dy})) << gradcheck(gradients, {x, dy}).message;
}

TEST(Registry, KnowsOpsOfUsersAndOfTheLibrary) {
  std::vector<std::string> names;
  std::vector<std::string> differentiable;
  for (const OpInfo& info : registered_ops()) {
    names.emplace_back(info.name);
    if (info.differentiable) {
      differentiable.emplace_back(info.name);
    }
  }
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_THAT(names, Contains("test_scale"));
  EXPECT_THAT(names, Contains("mul"));
  EXPECT_THAT(names, Contains("test_no_derivative"));
  EXPECT_THAT(differentiable, Not(Contains("test_no_derivative")));
}

TEST(Op, ANameMayBeAnyText) {
  const Tensor x = leaf({1, 2});
  sum(apply_op(NamedByView{}, x) + apply_op(NamedByText{}, x)).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(5, 5));
  EXPECT_EQ(grad_fn(apply_op(NamedByText{}, x))->name(), "test_named_by_text");
  ASSERT_NE(find_op("test_named_by_view"), nullptr);
  EXPECT_TRUE(find_op("test_named_by_view")->differentiable);
}

TEST(RegistryDeathTest, ANameIsTakenOnce) {
  EXPECT_DEATH(register_op({"test_scale", true}), "two ops are called 'test_scale'");
}

// ----------------------------------------------------------------------------------- saved tensors

// An in-place change of one element.
void overwrite(const Tensor& x) {
  x.data<float>()[0] = 100;
  x.bump_version();
}

TEST(SavedTensor, ChangedInputsAreNoticed) {
  const Tensor x = leaf({1, 2});
  const Tensor w = tensor({3, 4});
  const Tensor y = x * w;
  overwrite(w);
  const std::string message = message_of<RuntimeError>([&] { sum(y).backward(); });
  EXPECT_THAT(message, HasSubstr("mul: a tensor float32 [2]"));
  EXPECT_THAT(message, HasSubstr("version 0 and is now at version 1"));
}

TEST(SavedTensor, ChangesThroughAViewAreNoticed) {
  const Tensor x = leaf({1, 2});
  const Tensor w = tensor({3, 4});
  const Tensor y = x * w;
  overwrite(w.slice(0, 1, 2));
  EXPECT_THROW(sum(y).backward(), RuntimeError);
}

TEST(SavedTensor, ChangedOutputsAreNoticed) {
  const Tensor x = leaf({1, 4});
  const Tensor y = apply_op(Root{}, x);
  overwrite(y);
  EXPECT_THAT(message_of<RuntimeError>([&] { sum(y).backward(); }), HasSubstr("test_root"));
}

TEST(SavedTensor, WhatIsNotSavedMayChange) {
  const Tensor x = leaf({1, 2});
  const Tensor y = x + tensor({3, 4});
  overwrite(y);
  sum(y).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(1, 1));
  // A product with a constant needs only the constant.
  const Tensor v = leaf({1, 2});
  const Tensor h = v * 1;
  const Tensor z = h * tensor({3, 4});
  overwrite(h);
  sum(z).backward();
  EXPECT_THAT(values(v.grad()), ElementsAre(3, 4));
}

TEST(SavedTensor, ChangesBeforeSavingAreFine) {
  const Tensor w = tensor({3, 4});
  overwrite(w);
  const Tensor x = leaf({1, 2});
  sum(x * w).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(100, 4));
}

TEST(SavedTensor, OutputsDoNotOwnTheirNode) {
  RankContext context;
  const RankContextGuard guard(context);
  {
    const Tensor x = leaf({1, 4});
    const Tensor y = apply_op(Root{}, x);
    const Tensor g = grad(sum(y), {x}, {}, {.create_graph = true})[0];
    EXPECT_TRUE(g.requires_grad());
  }
  EXPECT_EQ(memory_stats().current_bytes, 0);
}

}  // namespace
}  // namespace tapestry
