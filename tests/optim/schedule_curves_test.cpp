#include "optim/schedule_curves.h"

#include <cmath>

#include "optim/sgd.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::optim {
namespace {

constexpr double kCurveBound = 1e-12;

TEST(Curves, FromFirstToLast) {
  for (const Curve& c : {curve::linear(4, 1, 10), curve::cosine(4, 1, 10),
                         curve::polynomial(4, 1, 10, 2), curve::exponential(4, 1, 10)}) {
    EXPECT_NEAR(c(0), 4, kCurveBound);
    EXPECT_NEAR(c(10), 1, kCurveBound);
    EXPECT_EQ(c(1e9), 1);
  }
  EXPECT_NEAR(curve::linear(4, 1, 10)(5), 2.5, kCurveBound);
  EXPECT_NEAR(curve::linear(1, 4, 10)(5), 2.5, kCurveBound);
  EXPECT_NEAR(curve::cosine(4, 1, 12)(4), 1 + 3 * 0.75, kCurveBound);
  EXPECT_NEAR(curve::polynomial(4, 1, 10, 2)(5), 1.75, kCurveBound);
  EXPECT_NEAR(curve::exponential(4, 1, 10)(5), 1 + 3 * (std::sqrt(2.0) - 1), kCurveBound);
  EXPECT_EQ(curve::constant(3)(7), 3);
  EXPECT_NEAR(curve::inverse_square_root(4, 2)(6), 2, kCurveBound);
  EXPECT_EQ(curve::inverse_square_root(4, 2, 3)(6), 3);
}

TEST(Curves, Steps) {
  const Curve every = curve::steps(8, 0.5, 3);
  EXPECT_EQ(every(2.9), 8);
  EXPECT_EQ(every(3), 4);
  EXPECT_EQ(every(8), 2);
  const Curve at = curve::steps_at(8, 0.5, {2, 7});
  EXPECT_EQ(at(1), 8);
  EXPECT_EQ(at(2), 4);
  EXPECT_EQ(at(7), 2);
}

TEST(Curves, OneAfterTheOther) {
  const Curve c = curve::warm_up(1, 3, 4, curve::linear(3, 0, 6));
  EXPECT_EQ(c(0), 1);
  EXPECT_EQ(c(2), 2);
  EXPECT_EQ(c(4), 3);
  EXPECT_NEAR(c(6), 2, kCurveBound);
  EXPECT_EQ(c(10), 0);
  EXPECT_EQ(curve::warm_up(0, 3, 0, curve::constant(3))(0), 3);
  EXPECT_NEAR(curve::shifted(c, 4)(2), 2, kCurveBound);
  // Stay, then fall.
  const Curve wsd = curve::join(curve::constant(2), 5, curve::cosine(2, 1, 2));
  EXPECT_EQ(wsd(4), 2);
  EXPECT_NEAR(wsd(6), 1.5, kCurveBound);
}

TEST(Curves, OneCycle) {
  const Curve c = curve::one_cycle(
      {.peak = 2, .length = 10, .rising = 0.4, .start_divisor = 4, .final_divisor = 5});
  EXPECT_NEAR(c(0), 0.5, kCurveBound);
  EXPECT_NEAR(c(2), 1.25, kCurveBound);
  EXPECT_NEAR(c(4), 2, kCurveBound);
  EXPECT_NEAR(c(7), 1.05, kCurveBound);
  EXPECT_NEAR(c(10), 0.1, kCurveBound);
  EXPECT_NEAR(c(11), 0.1, kCurveBound);
}

TEST(Curves, Waves) {
  const Curve half = curve::cosine_waves(4, 1, 10, 0.5);
  const Curve plain = curve::cosine(4, 1, 10);
  for (const double position : {0.0, 1.0, 3.3, 9.9, 10.0, 11.0}) {
    EXPECT_EQ(half(position), plain(position));
  }
  const Curve whole = curve::cosine_waves(4, 1, 10, 1);
  EXPECT_NEAR(whole(5), 1, kCurveBound);
  EXPECT_NEAR(whole(7.5), 2.5, kCurveBound);
  EXPECT_EQ(whole(10), 1);
  const Curve restarts = curve::cosine_restarts(4, 1, 12, 3);
  EXPECT_EQ(restarts(4), 4);
  EXPECT_NEAR(restarts(6), 2.5, kCurveBound);
  EXPECT_EQ(restarts(8), 4);
  EXPECT_EQ(restarts(12), 1);
  const Curve annealing = curve::cosine_annealing(4, 1, 10);
  EXPECT_NEAR(annealing(10), 1, kCurveBound);
  EXPECT_NEAR(annealing(15), 2.5, kCurveBound);
  EXPECT_NEAR(annealing(20), 4, kCurveBound);
  const Curve same = curve::warm_restarts(4, 1, 10, 1);
  EXPECT_EQ(same(30), 4);
  EXPECT_NEAR(same(35), 2.5, kCurveBound);
  const Curve growing = curve::warm_restarts(4, 1, 10, 2);
  EXPECT_EQ(growing(10), 4);
  EXPECT_NEAR(growing(20), 2.5, kCurveBound);
  EXPECT_EQ(growing(30), 4);
  EXPECT_NEAR(growing(50), 2.5, kCurveBound);
  EXPECT_EQ(growing(70), 4);
}

TEST(Curves, WrongNumbers) {
  expect_throws<ValueError>([] { curve::cosine_waves(1, 0, 1, 0); }, {"waves"});
  expect_throws<ValueError>([] { curve::cosine_restarts(1, 0, 1, -1); }, {"cycles"});
  expect_throws<ValueError>([] { curve::cosine_annealing(1, 0, 0); }, {"length"});
  expect_throws<ValueError>([] { curve::warm_restarts(1, 0, 0, 1); }, {"length"});
  expect_throws<ValueError>([] { curve::warm_restarts(1, 0, 1, 0.5); }, {"factor", "0.5"});
  expect_throws<ValueError>([] { curve::linear(1, 0, 0); }, {"curve::linear: length", "above 0"});
  expect_throws<ValueError>([] { curve::polynomial(1, 0, 1, 0); }, {"power"});
  expect_throws<ValueError>([] { curve::inverse_square_root(1, 0); }, {"before"});
  expect_throws<ValueError>([] { curve::steps(1, 1, -2); }, {"every", "-2"});
  expect_throws<ValueError>([] { curve::join({}, -1, {}); }, {"curve::join"});
  expect_throws<ValueError>([] { curve::one_cycle({.rising = 1}); }, {"rising"});
  expect_throws<ValueError>([] { ComposedSchedule({}); }, {"ComposedSchedule"});
}

TEST(ComposedSchedule, CountsWhatItIsTold) {
  const Schedule::Position position{.applied = 3, .seen = 5};
  const ComposedSchedule applied({.learning_rate = curve::linear(0, 10, 10)});
  EXPECT_EQ(applied.learning_rate(position), 3);
  EXPECT_EQ(applied.weight_decay(position), std::nullopt);
  const ComposedSchedule samples({.learning_rate = curve::linear(0, 100, 100),
                                  .weight_decay = curve::constant(0.5),
                                  .unit = ComposedSchedule::Unit::kSeen,
                                  .per_step = 4});
  EXPECT_EQ(samples.learning_rate(position), 20);
  EXPECT_EQ(samples.weight_decay(position), 0.5);
}

// Through the interface that training has.
TEST(ComposedSchedule, SetsTheGroups) {
  const Tensor w = ones({2});
  const Tensor b = ones({2});
  w.set_requires_grad();
  b.set_requires_grad();
  SGD sgd({{.params = {w}}, {.params = {b}, .lr_mult = 0.5, .wd_mult = 0}}, {});
  ComposedSchedule({.learning_rate = curve::one_cycle({.peak = 2, .length = 10, .rising = 0.5}),
                    .weight_decay = curve::constant(0.1)})
      .apply(sgd, {.applied = 5, .seen = 5});
  EXPECT_NEAR(sgd.param_groups()[0].lr.value(), 2, kCurveBound);
  EXPECT_NEAR(sgd.param_groups()[1].lr.value(), 1, kCurveBound);
  EXPECT_EQ(sgd.param_groups()[0].weight_decay, 0.1);
  EXPECT_EQ(sgd.param_groups()[1].weight_decay, 0);
}

}  // namespace
}  // namespace tapestry::optim
