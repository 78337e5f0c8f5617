#include "parallel_core/training/watch/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/parallel_core/small_model.h"
#include "tests/says.h"

namespace tapestry {
namespace divergence_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Overrides;
using testing::small_config;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

StepResult good() { return {.loss = 3, .grad_norm = 1, .lr = {1e-3, 2e-3}}; }
StepResult bad() { return {.loss = kNan, .finite = false, .grad_norm = kNan, .lr = {1e-3}}; }
// float16: the gradients overflow, the loss does not.
StepResult overflow(double scale) {
  return {.loss = 3, .finite = false, .loss_scale = scale, .grad_norm = kNan, .lr = {1e-3}};
}

// The report after `finite` good steps and some bad ones.
std::string report(const Overrides& overrides, int finite, const StepResult& result) {
  const AllConfig config = small_config(overrides);
  DivergenceWatch watch(config);
  int64_t step = 0;
  for (int i = 0; i < finite; ++i) {
    watch.observe(++step, good());
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(watch.has_diverged());
    watch.observe(++step, result);
  }
  EXPECT_TRUE(watch.has_diverged());
  return watch.report();
}

TEST(Divergence, OnlyStepsInARowCount) {
  const AllConfig config = small_config({"training_config.max_nonfinite_steps=2"});
  DivergenceWatch watch(config);
  EXPECT_FALSE(watch.ends_badly());  // no step at all
  for (int64_t step = 1; step < 10; ++step) {
    watch.observe(step, step % 2 == 0 ? good() : bad());
    EXPECT_FALSE(watch.has_diverged());
    EXPECT_EQ(watch.loss_is_finite(), step % 2 == 0);
    EXPECT_EQ(watch.ends_badly(), step % 2 != 0);
  }
  watch.observe(10, bad());
  EXPECT_TRUE(watch.has_diverged());
}

// The update was skipped, the weights are what they were.
TEST(Divergence, AnOverflowAtTheEndIsNoFailure) {
  const AllConfig config = small_config();
  DivergenceWatch watch(config);
  watch.observe(1, good());
  watch.observe(2, overflow(1024));
  EXPECT_TRUE(watch.loss_is_finite());
  EXPECT_FALSE(watch.ends_badly());
  DivergenceWatch never(config);
  never.observe(1, overflow(1024));
  EXPECT_TRUE(never.ends_badly());  // not one update
}

// A run that goes on counts as if it had not stopped.
TEST(Divergence, StepsBeforeTheStopCount) {
  const AllConfig config = small_config({"training_config.max_nonfinite_steps=3"});
  DivergenceWatch before(config);
  before.observe(1, good());
  before.observe(2, overflow(1024));
  before.observe(3, overflow(1024));
  EXPECT_FALSE(before.has_diverged());
  DivergenceWatch after(config);
  after.set_past(before.past());
  EXPECT_FALSE(after.ends_badly());  // no step at all yet
  after.observe(4, overflow(1024));
  EXPECT_TRUE(after.has_diverged());
  EXPECT_FALSE(after.ends_badly());  // step 1 has made an update
  EXPECT_THAT(after.report(),
              AllOf(HasSubstr("the last 3 steps (2 to 4) were not finite"),
                    HasSubstr("have not changed since step 1"), HasSubstr("was 0.002 at step 1")));
}

// optimizer_in_backward says "finite" without having looked.
TEST(Divergence, TheNormCountsToo) {
  const AllConfig config = small_config({"training_config.max_nonfinite_steps=1"});
  DivergenceWatch watch(config);
  watch.observe(1, {.loss = 3, .grad_norm = std::numeric_limits<double>::infinity()});
  EXPECT_TRUE(watch.has_diverged());
}

// What is said of a run that ends after these losses.
std::string end_of(const std::vector<double>& losses, const Overrides& overrides = {}) {
  const AllConfig config = small_config(overrides);
  DivergenceWatch watch(config);
  int64_t step = 0;
  for (const double loss : losses) {
    watch.observe(++step, {.loss = loss, .grad_norm = 1, .lr = {1e-3}});
  }
  return watch.worse_than_it_began();
}

std::vector<double> losses_of(int count, double first, double last, double noise = 0) {
  std::vector<double> losses;
  for (int i = 0; i < count; ++i) {
    losses.push_back(first + (last - first) * i / (count - 1) + (i % 2 == 0 ? noise : -noise));
  }
  return losses;
}

TEST(Divergence, ARunThatEndsWorseThanItBegan) {
  EXPECT_THAT(end_of({6.9, 40, 180, 246}),
              AllOf(HasSubstr("ends worse than it began: the lowest loss of its last 2 steps is "
                              "180, its first was 6.9; a model that knows nothing"),
                    HasSubstr("learning_rate")));
  EXPECT_THAT(end_of({6.9, 246}), HasSubstr("of its last 1 step is 246"));
  // Spoilt by its first updates, and then better than that.
  std::vector<double> at_once = losses_of(40, 9000, 246, 50);
  at_once.front() = 6.9;
  EXPECT_THAT(end_of(at_once), HasSubstr("of its last 10 steps"));
  // A fine-tuned model that is ruined, though not below chance.
  const Overrides large = {"model_config.vocab_size=32000"};
  EXPECT_THAT(end_of(losses_of(60, 1.8, 7.5), large),
              AllOf(HasSubstr("ends worse"), Not(HasSubstr("knows nothing"))));
  // One that its first updates have ruined, below chance all the time.
  std::vector<double> ruined = losses_of(60, 5.5, 5.2);
  ruined[0] = 2;
  ruined[1] = 2.4;
  EXPECT_THAT(end_of(ruined, large),
              AllOf(HasSubstr("ends worse"), Says("2, ... none after the first ... 10")));
  ruined[30] = 2.9;  // it has come near it
  EXPECT_EQ(end_of(ruined, large), "");
  // A spike from which the run has come back, or one at the very end, is none.
  EXPECT_EQ(end_of({5, 4, 90, 80, 5, 4}), "");
  std::vector<double> spike = losses_of(40, 5, 3);
  spike.back() = 60;
  EXPECT_EQ(end_of(spike), "");
}

TEST(Divergence, NoiseIsNotWorse) {
  const Overrides large = {"model_config.vocab_size=32000"};
  EXPECT_EQ(end_of({}), "");
  EXPECT_EQ(end_of({500}), "");                           // nothing to compare with
  EXPECT_EQ(end_of({3.1, 3.3}), "");                      // two steps, other batches
  EXPECT_EQ(end_of({0.4, 0.5, 2.9, 3.4}, large), "");     // answers of one and of another kind
  EXPECT_EQ(end_of({14, 15.5}), "");                      // a start far from chance
  EXPECT_EQ(end_of(losses_of(200, 2.5, 2.6, 0.9)), "");   // a resumed run that learns no more
  EXPECT_EQ(end_of(losses_of(200, 1.5, 2.6, 0.4)), "");   // other data than before
  EXPECT_EQ(end_of(losses_of(30, 0.02, 0.3, 0.01)), "");  // memorised, then a little forgotten
  EXPECT_EQ(end_of({3, 3, 40, kNan}), "");                // not finite is told elsewhere
}

TEST(Divergence, SaysWhatHappened) {
  EXPECT_THAT(report({}, 5, bad()), AllOf(Says("10 ... (6 ... 15) ... of the gradients nan"),
                                          HasSubstr("have not changed since step 5")));
  EXPECT_THAT(report({}, 0, bad()), Says("gradients nan ... weights ... run began with"));
  EXPECT_THAT(report({"optimizer_config.optimizer_in_backward=True"}, 5, bad()),
              HasSubstr("updated all the same"));
}

TEST(Divergence, NamesTheRemediesThatTheConfigurationLeaves) {
  const std::string plain = report({}, 5, bad());
  EXPECT_THAT(
      plain, AllOf(Says("a lower ... optimizer_config.learning_rate (it ... 0.01, ... 0.002 ... 5"),
                   HasSubstr("lr_warmup_iters"), HasSubstr("clip_grad")));
  EXPECT_THAT(plain, Not(HasSubstr("loss_scale")));
  EXPECT_THAT(plain, Not(HasSubstr("bf16")));
  const std::string careful =
      report({"optimizer_config.clip_grad=1", "optimizer_config.lr_warmup_iters=2"}, 5, bad());
  EXPECT_THAT(careful, AllOf(Not(HasSubstr("clip")), Not(HasSubstr("lr_warmup"))));
  EXPECT_THAT(report({"training_config.bf16=True"}, 5, bad()), HasSubstr("float32 in place of"));
  EXPECT_THAT(report({}, 0, bad()),
              AllOf(HasSubstr("init_method_std (it is 0.1)"), Not(HasSubstr("learning_rate"))));
  EXPECT_THAT(report({"training_config.load_checkpoint=there"}, 0, bad()),
              HasSubstr("load_checkpoint there"));
}

TEST(Divergence, NamesTheLossScale) {
  const Overrides half = {"training_config.fp16=True"};
  EXPECT_THAT(report(testing::joined(half, {"training_config.loss_scale=1e30"}), 0, overflow(1e30)),
              AllOf(Says("a smaller ... training_config.loss_scale (it ... 1e+30)"),
                    Says("training_config.bf16: ... True"), Not(HasSubstr("init_method"))));
  EXPECT_THAT(report(testing::joined(half, {"training_config.loss_scale_value=1e30",
                                            "training_config.loss_scale_factor=2",
                                            "training_config.loss_scale_window=1000"}),
                     0, overflow(1e27)),
              AllOf(HasSubstr("loss_scale_value (it is 1e+30 and has come down to 1e+27)"),
                    HasSubstr("max_nonfinite_steps")));
  // A loss that is not finite is not the scale's fault.
  EXPECT_THAT(report(testing::joined(half, {"training_config.loss_scale=1024"}), 3, bad()),
              Not(HasSubstr("loss_scale (")));
}

}  // namespace
}  // namespace divergence_test
}  // namespace tapestry
