// Settings of a group, and groups that come later.
#include <array>
#include <cmath>
#include <sstream>

#include "autograd/tensor/factory.h"
#include "optim/adam.h"
#include "optim/lr_scheduler.h"
#include "optim/sgd.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::optim {
namespace param_group_test {
namespace {

Tensor parameter(std::initializer_list<float> values) {
  Tensor p = tensor(values);
  p.set_requires_grad();
  return p;
}

void give_gradients(const TensorList& parameters, float value) {
  for (const Tensor& p : parameters) {
    p.set_grad(full(p.shape(), value));
  }
}

TEST(ParamGroup, BetasOfAGroupAreThoseOfAnOptimizerOfItsOwn) {
  const TensorList together = {parameter({1, 2}), parameter({3})};
  const TensorList apart = {parameter({1, 2}), parameter({3})};
  AdamW both({{.params = {together[0]}, .names = {"a"}, .lr = 0.1},
              {.params = {together[1]}, .names = {"b"}, .lr = 0.1, .betas = {{0.5, 0.75}}}},
             {.beta1 = 0.9, .beta2 = 0.99});
  AdamW first({apart[0]}, {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99});
  AdamW second({apart[1]}, {.lr = 0.1, .beta1 = 0.5, .beta2 = 0.75});
  for (const float gradient : {1.0F, -3.0F, 0.25F}) {
    give_gradients(together, gradient);
    give_gradients(apart, gradient);
    both.step();
    first.step();
    second.step();
  }
  EXPECT_EQ(values(together[0]), values(apart[0]));
  EXPECT_EQ(values(together[1]), values(apart[1]));
  // Not what the betas of the optimizer give.
  const Tensor other = parameter({3});
  AdamW third({other}, {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99});
  for (const float gradient : {1.0F, -3.0F, 0.25F}) {
    give_gradients({other}, gradient);
    third.step();
  }
  EXPECT_NE(values(together[1]), values(other));
}

TEST(ParamGroup, AGroupThatIsAddedStartsItsOwnCount) {
  const TensorList p = {parameter({1}), parameter({1}), parameter({1})};
  Adam optimizer({p[0]}, {.lr = 0.1});
  give_gradients(p, 1);
  optimizer.step();
  optimizer.add_param_group({.params = {p[1]}, .names = {"late"}, .lr = 0.1});
  const Tensor narrow = p[2].detach().to(kBFloat16).set_requires_grad();
  optimizer.add_param_group({.params = {narrow}, .lr = 0.1});
  narrow.set_grad(ones({1}, kBFloat16));
  optimizer.step();
  EXPECT_EQ(optimizer.steps_done("late"), 1);
  EXPECT_EQ(optimizer.steps_done("0.0"), 2);
  EXPECT_EQ(optimizer.main_param("2.0").dtype(), kFloat32);  // a master, as from the start
  EXPECT_NEAR(p[1].item(), 0.9, 1e-6);
  EXPECT_EQ(optimizer.param_groups().size(), 3U);
  EXPECT_TRUE(optimizer.state_dict().contains("late.exp_avg"));
}

TEST(ParamGroup, MistakesChangeNothing) {
  const Tensor p = parameter({1});
  const Tensor q = parameter({2});
  Adam optimizer({p});
  expect_throws<ValueError>([&] { optimizer.add_param_group({.params = {p}, .names = {"again"}}); },
                            {"'again' appears twice"});
  expect_throws<ValueError>(
      [&] {
        optimizer.add_param_group({.params = {q, p}, .names = {"q", "p"}});
      },
      {"twice"});
  expect_throws<ValueError>([&] { optimizer.add_param_group({.params = {q}, .names = {"0.0"}}); },
                            {"the name '0.0' appears twice"});
  expect_throws<ValueError>(
      [&] {
        optimizer.add_param_group({.params = {q}, .betas = {{0.9, 1.0}}});
      },
      {"betas", "0.9", "1"});
  EXPECT_EQ(optimizer.param_groups().size(), 1U);
  optimizer.add_param_group({.params = {q}, .names = {"q"}});
  expect_throws<ValueError>([&] { AdamW({{.params = {q}, .betas = {{-1, 0.5}}}}, {}); }, {"betas"});
  expect_throws<ValueError>(
      [&] {
        SGD({{.params = {q}, .betas = {{0.9, 0.99}}}}, {});
      },
      {"SGD: a group has betas"});
  SGD sgd({p});
  expect_throws<ValueError>(
      [&] {
        sgd.add_param_group({.params = {q}, .betas = {{0.9, 0.99}}});
      },
      {"betas"});
}

// What is left out is the optimizer's; what is given as 0 is 0.
TEST(ParamGroup, UnsetIsNotZero) {
  const TensorList p = {ones({2}), ones({2}), ones({2})};
  for (const Tensor& each : p) {
    each.set_requires_grad();
    each.set_grad(ones({2}));
  }
  AdamW optimizer({{.params = {p[0]}},
                   {.params = {p[1]}, .weight_decay = 0.0, .lr_mult = 0.5},
                   {.params = {p[2]}, .lr = 0.0}},
                  {.lr = 0.5, .eps = 0, .weight_decay = 0.5});
  optimizer.step();
  EXPECT_NEAR(p[0].at({0}), 0.25, 1e-6);  // 1 (1 - 0.25) - 0.5
  EXPECT_NEAR(p[1].at({0}), 0.75, 1e-6);  // 1 - 0.25
  EXPECT_EQ(p[2].at({0}), 1);
  ConstantSchedule(1, 0.25).apply(optimizer, {});
  EXPECT_EQ(optimizer.param_groups()[0].weight_decay, 0.25);
  EXPECT_EQ(optimizer.param_groups()[1].weight_decay, 0);
  EXPECT_EQ(optimizer.param_groups()[1].lr, 0.5);
  EXPECT_EQ(optimizer.param_groups()[2].lr, 0);
  EXPECT_THROW(SGD({{.params = {ones({1})}, .lr = -1}}, {}), ValueError);
}

// A schedule of the optimizer's rate is one of each group's own, in proportion.
TEST(ParamGroup, WhatItGivesKeepsItsRatioUnderASchedule) {
  const auto groups = [] {
    std::vector<ParamGroup> out(4);
    for (ParamGroup& group : out) {
      group.params.push_back(parameter({1}));
    }
    out[1].lr = 0.125;
    out[1].weight_decay = 0.0625;
    out[2].lr = 0.125;  // beside a factor, which is the schedule's
    out[2].lr_mult = 3;
    out[3].lr = 0.0;
    return out;
  };
  AdamW optimizer(groups(), {.lr = 0.5, .weight_decay = 0.25});
  ConstantSchedule(2, 1).apply(optimizer, {});
  EXPECT_EQ(optimizer.param_groups()[0].lr, 2);
  EXPECT_EQ(optimizer.param_groups()[0].weight_decay, 1);
  EXPECT_EQ(optimizer.param_groups()[1].lr, 0.5);
  EXPECT_EQ(optimizer.param_groups()[1].weight_decay, 0.25);
  EXPECT_EQ(optimizer.param_groups()[2].lr, 6);
  EXPECT_EQ(optimizer.param_groups()[3].lr, 0);
  // Of the rate alone: every group's weight decay stays. What a group gives beside an optimizer
  // without one has nothing to be in proportion to, and no schedule overwrites it.
  AdamW other(groups(), {.lr = 0.5});
  ConstantSchedule(2).apply(other, {});
  EXPECT_EQ(other.param_groups()[0].weight_decay, 0);
  EXPECT_EQ(other.param_groups()[1].weight_decay, 0.0625);
  ConstantSchedule(2, 1).apply(other, {});
  EXPECT_EQ(other.param_groups()[0].weight_decay, 1);
  EXPECT_EQ(other.param_groups()[1].weight_decay, 0.0625);
  ConstantSchedule(2, 0).apply(other, {});  // as a configuration that says nothing of it
  EXPECT_EQ(other.param_groups()[0].weight_decay, 0);
  EXPECT_EQ(other.param_groups()[1].weight_decay, 0.0625);
  AdamW idle(groups(), {.lr = 0});
  ConstantSchedule(2).apply(idle, {});
  EXPECT_EQ(idle.param_groups()[0].lr, 2);
  EXPECT_EQ(idle.param_groups()[1].lr, 0.125);
  EXPECT_EQ(idle.param_groups()[2].lr, 6);  // its factor says what a schedule does
  EXPECT_EQ(idle.param_groups()[3].lr, 0);
}

TEST(ParamGroup, AValuePrintsAsItselfOrUnset) {
  std::ostringstream text;
  text << GroupValue() << ' ' << GroupValue(0) << ' ' << GroupValue(0.1);
  EXPECT_EQ(text.str(), "unset 0 0.1");
}

}  // namespace
}  // namespace param_group_test
}  // namespace tapestry::optim
