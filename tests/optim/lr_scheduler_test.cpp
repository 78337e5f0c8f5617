#include "optim/lr_scheduler.h"

#include <cmath>

#include "tests/nn/nn_test_util.h"

namespace tapestry::optim {
namespace {

constexpr double kBound = 1e-12;

double at(const Schedule& schedule, int64_t step) {
  return schedule.learning_rate({.applied = step, .seen = step});
}
double decay_at(const Schedule& schedule, int64_t step) {
  return schedule.weight_decay({.applied = step, .seen = step}).value();
}

TEST(LearningRateScheduler, WarmsUpThenFollowsACosineThatCountsFromZero) {
  const LearningRateScheduler s({.learning_rate = 2,
                                 .end_learning_rate = 1,
                                 .warmup_steps = 4,
                                 .decay_steps = 12,
                                 .weight_decay = 0.5});
  EXPECT_EQ(at(s, 0), 0);
  EXPECT_EQ(at(s, 1), 0.5);
  EXPECT_EQ(at(s, 3), 1.5);
  EXPECT_NEAR(at(s, 4), 1 + (1 + std::cos(M_PI / 3)) / 2, kBound);
  EXPECT_NEAR(at(s, 6), 1.5, kBound);
  EXPECT_NEAR(at(s, 12), 1, kBound);
  EXPECT_NEAR(at(s, 1000), 1, kBound);
  EXPECT_EQ(decay_at(s, 0), 0.5);
  EXPECT_EQ(decay_at(s, 1000), 0.5);
  // Steps that were skipped do not count.
  EXPECT_EQ(s.learning_rate({.applied = 1, .seen = 50}), 0.5);
}

TEST(LearningRateScheduler, Polynomial) {
  const LearningRateScheduler s({.learning_rate = 3,
                                 .end_learning_rate = 1,
                                 .decay_steps = 4,
                                 .power = 2,
                                 .use_cosine = false});
  EXPECT_EQ(at(s, 0), 3);
  EXPECT_NEAR(at(s, 1), 1 + 2 * 0.5625, kBound);
  EXPECT_NEAR(at(s, 2), 1.5, kBound);
  EXPECT_EQ(at(s, 4), 1);
  EXPECT_EQ(at(s, 5), 1);
}

TEST(LearningRateScheduler, NamesTheKeyOfABadValue) {
  const auto bad = [](LearningRateSchedulerOptions o, const std::string& key) {
    expect_throws<ValueError>([&] { LearningRateScheduler{o}; }, {key});
  };
  bad({.learning_rate = 0}, "learning_rate must");
  bad({.learning_rate = std::nan("")}, "learning_rate must");
  bad({.end_learning_rate = -1}, "end_learning_rate");
  bad({.warmup_steps = -1}, "warmup_steps");
  bad({.decay_steps = 0}, "decay_steps");
  bad({.power = 0}, "power");
  bad({.weight_decay = -1}, "weight_decay");
}

TEST(ConstantSchedule, IsConstant) {
  const ConstantSchedule s(0.5, 0.1);
  EXPECT_EQ(at(s, 0), 0.5);
  EXPECT_EQ(at(s, 99), 0.5);
  EXPECT_EQ(decay_at(s, 99), 0.1);
}

}  // namespace
}  // namespace tapestry::optim
