#include "optim/grad_scaler.h"

#include <cmath>
#include <limits>

#include "tests/nn/nn_test_util.h"

namespace tapestry::optim {
namespace {

TEST(GradScaler, StaticNeverChanges) {
  GradScaler scaler(128);
  EXPECT_FALSE(scaler.is_dynamic());
  for (const bool finite : {true, false, true, true}) {
    scaler.update(finite);
    EXPECT_EQ(scaler.scale(), 128);
    EXPECT_EQ(scaler.good_steps(), 0);
  }
  EXPECT_EQ(GradScaler().scale(), 1);
}

TEST(GradScaler, GrowsAfterAWindowOfFiniteStepsAndShrinksAfterAnOverflow) {
  GradScaler scaler(16, 2, 3);
  EXPECT_TRUE(scaler.is_dynamic());
  const std::vector<std::pair<bool, float>> steps = {
      {true, 16}, {true, 16}, {true, 32}, {true, 32}, {true, 32}, {false, 16}, {true, 16},
      {true, 16}, {false, 8}, {false, 4}, {true, 4},  {true, 4},  {true, 8}};
  for (size_t i = 0; i < steps.size(); ++i) {
    scaler.update(steps[i].first);
    EXPECT_EQ(scaler.scale(), steps[i].second) << i;
  }
  EXPECT_EQ(scaler.good_steps(), 0);
}

TEST(GradScaler, StaysBetweenOneAndInfinity) {
  GradScaler low(3, 2, 1000);
  low.update(false);
  EXPECT_EQ(low.scale(), 1.5);
  low.update(false);
  EXPECT_EQ(low.scale(), 1);
  low.update(false);
  EXPECT_EQ(low.scale(), 1);
  GradScaler high(std::ldexp(1, 126), 2, 1);
  high.update(true);
  EXPECT_EQ(high.scale(), std::ldexp(1.0F, 127));
  high.update(true);
  EXPECT_EQ(high.scale(), std::ldexp(1.0F, 127));
}

TEST(GradScaler, RestoresItsState) {
  GradScaler one(16, 2, 3);
  one.update(true);
  one.update(true);
  GradScaler two(1, 2, 3);
  two.set_state(one.state());
  EXPECT_EQ(two.good_steps(), 2);
  two.update(true);
  EXPECT_EQ(two.scale(), 32);
}

TEST(GradScaler, RefusesBadSettings) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double scale : {0.0, -1.0, std::nan(""), inf, 1e-50, 1e39}) {
    expect_throws<ValueError>([&] { GradScaler{scale}; }, {"loss_scale", concat(scale)});
  }
  for (const double initial : {0.5, std::nan(""), inf, 1e39}) {
    expect_throws<ValueError>([&] { GradScaler(initial, 2, 1); }, {"loss_scale_value"});
  }
  for (const double factor : {1.0, 0.5, std::nan(""), inf}) {
    expect_throws<ValueError>([&] { GradScaler(16, factor, 1); }, {"loss_scale_factor"});
  }
  for (const int64_t window : {0, -1}) {
    expect_throws<ValueError>([&] { GradScaler(16, 2, window); }, {"loss_scale_window"});
  }
  GradScaler scaler(16, 2, 3);
  for (const GradScaler::State& state :
       {GradScaler::State{0, 0}, {static_cast<float>(inf), 0}, {1, -1}}) {
    expect_throws<ValueError>([&] { scaler.set_state(state); }, {"good_steps"});
  }
  EXPECT_EQ(scaler.scale(), 16);
}

}  // namespace
}  // namespace tapestry::optim
