// What all optimizers share: groups, missing gradients, scaling, state.
#include "optim/optimizer.h"

#include <cmath>
#include <memory>

#include "autograd/ops/ops.h"
#include "autograd/tape/grad_mode.h"
#include "optim/adam.h"
#include "optim/lr_scheduler.h"
#include "optim/sgd.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::optim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

Tensor parameter(std::initializer_list<float> start) {
  Tensor p = tensor(start);
  p.set_requires_grad();
  return p;
}

ParamGroup group(const TensorList& params, std::vector<std::string> names, double lr) {
  ParamGroup out;
  out.params = params;
  out.names = std::move(names);
  out.lr = lr;
  return out;
}

TEST(Optimizer, StepsEachGroupWithItsOwnSettings) {
  const Tensor a = parameter({1});
  const Tensor b = parameter({1});
  SGD sgd({group({a}, {"a"}, 0.5), group({b}, {"b"}, 0.25)}, SGDOptions{});
  sgd.param_groups()[1].weight_decay = 2;
  a.set_grad(tensor({1}));
  b.set_grad(tensor({1}));
  sgd.step();
  EXPECT_EQ(a.item(), 0.5);
  EXPECT_EQ(b.item(), 1 - 0.25 * (1 + 2));
}

TEST(Optimizer, TakesRatesFromAScheduleTimesTheGroupsFactors) {
  const Tensor a = parameter({1});
  const Tensor b = parameter({1});
  const ParamGroup second{.params = {b}, .names = {"b"}, .lr_mult = 0.1, .wd_mult = 0};
  SGD sgd({{.params = {a}, .names = {"a"}}, second}, SGDOptions{});
  ConstantSchedule(0.5, 0.25).apply(sgd, {});
  EXPECT_EQ(sgd.param_groups()[0].lr, 0.5);
  EXPECT_EQ(sgd.param_groups()[0].weight_decay, 0.25);
  EXPECT_EQ(sgd.param_groups()[1].lr, 0.05);
  EXPECT_EQ(sgd.param_groups()[1].weight_decay, 0);
  a.set_grad(tensor({1}));
  b.set_grad(tensor({1}));
  sgd.step();
  EXPECT_EQ(a.item(), 1 - 0.5 * 1.25);
  EXPECT_FLOAT_EQ(static_cast<float>(b.item()), 0.95F);
}

TEST(Optimizer, LeavesAParameterWithoutGradientAlone) {
  const Tensor a = parameter({1});
  const Tensor b = parameter({1});
  AdamW adam({group({a, b}, {"a", "b"}, 0.1)}, AdamOptions{});
  adam.param_groups()[0].weight_decay = 0.5;
  for (int step = 0; step < 3; ++step) {
    a.set_grad(tensor({1}));
    b.set_grad(step == 1 ? tensor({1}) : Tensor());
    const double before = b.item();
    const uint32_t version = b.version();
    adam.step();
    EXPECT_EQ(b.item() == before, step != 1) << step;
    EXPECT_EQ(b.version() == version, step != 1) << step;
    EXPECT_EQ(adam.state("b").empty(), step == 0) << step;
  }
  EXPECT_EQ(adam.steps_done("a"), 3);
  EXPECT_EQ(adam.steps_done("b"), 1);
  EXPECT_EQ(adam.steps_done("no such name"), 0);
  EXPECT_THAT(adam.state("no such name"), IsEmpty());
}

TEST(Optimizer, MultipliesGradientsAsItReadsThem) {
  for (const bool use_adam : {false, true}) {
    const Tensor a = parameter({1, -2});
    const Tensor b = parameter({1, -2});
    const auto make = [&](const Tensor& p) -> std::unique_ptr<Optimizer> {
      if (use_adam) {
        return std::make_unique<Adam>(TensorList{p}, AdamOptions{.lr = 0.1, .weight_decay = 0.5});
      }
      return std::make_unique<SGD>(TensorList{p},
                                   SGDOptions{.lr = 0.1, .momentum = 0.5, .weight_decay = 0.5});
    };
    const auto scaled = make(a);
    const auto plain = make(b);
    for (int step = 0; step < 3; ++step) {
      a.set_grad(tensor({8, 4}));
      b.set_grad(tensor({1, 0.5}));
      scaled->step(0.125);
      plain->step();
      EXPECT_EQ(values(a), values(b));
      EXPECT_THAT(values(a.grad()), ElementsAre(8, 4));  // the gradient itself stays
    }
  }
}

TEST(Optimizer, ReadsGradientsOfOtherDtypesStridesAndMainGrads) {
  const Tensor a = zeros({2, 2});
  const Tensor b = zeros({2});
  const Tensor c = zeros({2}, kBFloat16);
  const Tensor d = zeros({2});
  SGD sgd(
      {a.set_requires_grad(), b.set_requires_grad(), c.set_requires_grad(), d.set_requires_grad()},
      {.lr = 1});
  a.set_grad(matrix(2, 2, {1, 2, 3, 4}).t());
  b.set_main_grad(tensor({5, 6}).to(kBFloat16));
  c.set_main_grad(tensor({7, 8}));
  d.set_main_grad(tensor({9, 10}));
  sgd.step();
  EXPECT_THAT(values(a), ElementsAre(-1, -3, -2, -4));
  EXPECT_THAT(values(b), ElementsAre(-5, -6));
  EXPECT_THAT(values(c.to(kFloat32)), ElementsAre(-7, -8));
  EXPECT_THAT(values(d), ElementsAre(-9, -10));
  sgd.zero_grad();
  EXPECT_FALSE(a.grad().defined());
  EXPECT_THAT(values(b.main_grad().to(kFloat32)), ElementsAre(0, 0));
  EXPECT_THAT(values(c.main_grad()), ElementsAre(0, 0));
  EXPECT_THAT(values(d.main_grad()), ElementsAre(0, 0));
}

TEST(Optimizer, AGraphOfOldValuesNoticesTheStep) {
  const Tensor p = parameter({2});
  SGD sgd({p}, {.lr = 1});
  const Tensor y = p * p;
  p.set_grad(tensor({1}));
  sgd.step();
  EXPECT_THROW(y.backward(), RuntimeError);
}

TEST(Optimizer, RefusesParametersThatItCannotTrain) {
  const Tensor p = parameter({1});
  expect_throws<ValueError>([&] { SGD(TensorList{}, {}); }, {"no parameters"});
  expect_throws<ValueError>([&] { SGD({p, p}, {}); }, {"0.1", "twice"});
  expect_throws<ValueError>(
      [&] {
        SGD({group({p}, {"a"}, 1), group({p}, {"b"}, 1)}, SGDOptions{});
      },
      {"'b'", "twice"});
  expect_throws<ValueError>(
      [&] {
        SGD({group({p, parameter({2})}, {"a", "a"}, 1)}, SGDOptions{});
      },
      {"'a'", "twice"});
  expect_throws<ValueError>(
      [&] {
        SGD({group({p}, {"a", "b"}, 1)}, SGDOptions{});
      },
      {"1 parameters", "2 names"});
  expect_throws<ValueError>([&] { SGD({p * 2}, {}); }, {"0.0", "leaf"});
  expect_throws<ValueError>([&] { SGD({zeros({2, 3}).t()}, {}); }, {"contiguous"});
  expect_throws<ValueError>([&] { SGD({Tensor()}, {}); }, {"undefined"});
  expect_throws<TypeError>([&] { AdamW({zeros({2}, kInt64)}, {}); }, {"0.0", "int64"});
  for (const DType dtype : {kFloat16, kFloat64}) {
    expect_throws<ValueError>(
        [&] { AdamW({parameter({1})}, {.storage = {.exp_avg_sq_dtype = dtype}}); },
        {"exp_avg_sq_dtype", std::string(name_of(dtype))});
  }
}

/// Two parameters, one of which gets no gradient in the first step.
struct Training {
  explicit Training(const std::string& kind)
      : params{parameter({1, -2, 3}), parameter({0.5}), parameter({4})} {
    const std::vector<ParamGroup> groups = {group({params[0]}, {"w"}, 0.1),
                                            group({params[1], params[2]}, {"b", "idle"}, 0.05)};
    if (kind == "AdamW") {
      optimizer = std::make_unique<AdamW>(groups, AdamOptions{});
    } else if (kind == "Adam") {
      optimizer = std::make_unique<Adam>(groups, AdamOptions{});
    } else if (kind == "momentum") {
      optimizer = std::make_unique<SGD>(groups, SGDOptions{.momentum = 0.9});
    } else {
      optimizer = std::make_unique<SGD>(groups, SGDOptions{});
    }
    optimizer->param_groups()[0].weight_decay = 0.01;
  }
  void run(int from, int to) {
    for (int step = from; step < to; ++step) {
      optimizer->zero_grad();
      const Tensor loss = sum(square(params[0] - 0.3 * step));
      (step == 0 ? loss : loss + sum(square(params[1] - 1))).backward();
      optimizer->step();
    }
  }
  TensorList params;
  std::unique_ptr<Optimizer> optimizer;
};

class OptimizerState : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kinds,
                         OptimizerState,
                         ::testing::Values("AdamW", "Adam", "momentum", "SGD"));

TEST_P(OptimizerState, ResumesBitForBit) {
  for (const int stop : {0, 1, 3}) {
    Training whole(GetParam());
    whole.run(0, 6);
    Training first(GetParam());
    first.run(0, stop);
    nn::StateDict saved;
    for (const auto& [name, tensor] : first.optimizer->state_dict()) {
      saved.emplace(name, tensor.clone());
    }
    Training second(GetParam());
    for (size_t i = 0; i < second.params.size(); ++i) {
      const NoGradGuard guard;
      copy_(second.params[i], first.params[i]);
    }
    second.optimizer->load_state_dict(saved);
    first.run(stop, 6);  // what was loaded is a copy
    second.run(stop, 6);
    for (size_t i = 0; i < whole.params.size(); ++i) {
      EXPECT_EQ(values(second.params[i]), values(whole.params[i])) << stop << " " << i;
      EXPECT_EQ(values(first.params[i]), values(whole.params[i])) << stop << " " << i;
    }
    const nn::StateDict end = second.optimizer->state_dict();
    const nn::StateDict expected = whole.optimizer->state_dict();
    ASSERT_EQ(end.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      ASSERT_TRUE(end.contains(name)) << name;
      EXPECT_EQ(values(end.at(name)), values(tensor)) << name;
    }
  }
}

TEST(OptimizerState, HasOneEntryPerStateAndStep) {
  Training training("AdamW");
  EXPECT_THAT(training.optimizer->state_dict(), IsEmpty());
  training.run(0, 2);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : training.optimizer->state_dict()) {
    names.push_back(name);
  }
  EXPECT_THAT(names, ElementsAre("b.exp_avg", "b.exp_avg_sq", "b.step", "w.exp_avg", "w.exp_avg_sq",
                                 "w.step"));  // "idle" has had no update
  const nn::StateDict state = training.optimizer->state_dict();
  EXPECT_EQ(state.at("w.step").dtype(), kInt64);
  EXPECT_EQ(state.at("w.step").item(), 2);
  EXPECT_EQ(state.at("b.step").item(), 1);
  EXPECT_EQ(state.at("w.exp_avg").shape(), (Shape{3}));
  EXPECT_EQ(training.optimizer->state("w").at("exp_avg").raw(), state.at("w.exp_avg").raw());
}

TEST(OptimizerState, ConvertsDtypes) {
  Training training("momentum");
  training.optimizer->load_state_dict(
      {{"w.momentum_buffer", full({3}, 0.5, kFloat64)}, {"w.step", full({1}, 4, kFloat32)}});
  EXPECT_EQ(training.optimizer->steps_done("w"), 4);
  EXPECT_EQ(training.optimizer->state("w").at("momentum_buffer").dtype(), kFloat32);
  EXPECT_EQ(training.optimizer->steps_done("b"), 0);
}

TEST(OptimizerState, ReportsEverythingThatDoesNotFitAndChangesNothing) {
  Training training("AdamW");
  training.run(0, 2);
  const std::vector<float> before = values(training.optimizer->state("w").at("exp_avg"));
  nn::StateDict state;
  for (const auto& [name, tensor] : training.optimizer->state_dict()) {
    state.emplace(name, zeros_like(tensor));
  }
  state.erase("w.exp_avg");
  state["w.exp_avg_sq"] = zeros({4});
  state["b.step"] = zeros({2}, kInt64);
  state["idle.exp_avg"] = zeros({1});
  state["other.exp_avg"] = zeros({3});
  expect_throws<ValueError>(
      [&] { training.optimizer->load_state_dict(state); },
      {"AdamW", "missing: w.exp_avg\n", "wrong shape: w.exp_avg_sq is [4], expected [3]",
       "wrong shape: b.step is [2]", "missing: idle.step\n", "unexpected: other.exp_avg\n"});
  try {
    training.optimizer->load_state_dict(state);
  } catch (const ValueError& e) {
    EXPECT_THAT(e.what(), Not(::testing::HasSubstr("unexpected: idle.exp_avg")));
  }
  EXPECT_EQ(values(training.optimizer->state("w").at("exp_avg")), before);
  EXPECT_EQ(training.optimizer->steps_done("w"), 2);

  nn::StateDict undefined = training.optimizer->state_dict();
  undefined["w.exp_avg"] = Tensor();
  undefined["b.step"] = Tensor();
  expect_throws<ValueError>([&] { training.optimizer->load_state_dict(undefined); },
                            {"missing: w.exp_avg\n", "missing: b.step\n"});
  nn::StateDict negative = training.optimizer->state_dict();
  negative["w.step"] = full({}, -1, kInt64);
  expect_throws<ValueError>([&] { training.optimizer->load_state_dict(negative); },
                            {"w.step", "-1"});
  EXPECT_EQ(training.optimizer->steps_done("w"), 2);
}

}  // namespace
}  // namespace tapestry::optim
