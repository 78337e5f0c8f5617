// What becomes of bad steps: what is changed and what is not, and which steps are none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/tensor/error.h"
#include "tests/diagnosis/autopsy/planted_faults.h"
#include "tests/parallel_core/model_run.h"

namespace tapestry {
namespace step_autopsy_test {
namespace {

using autopsy::FaultKind;
using ::testing::HasSubstr;
using testing::Injector;
using testing::Overrides;
using testing::PlantedStep;
using testing::State;
using testing::Trainer;

class StepAutopsyTest : public ::testing::Test {
 protected:
  StepAutopsyTest() { initialize_model_parallel(); }
  ~StepAutopsyTest() override { destroy_model_parallel(); }

  static std::vector<data::Batch> batches(const AllConfig& config, int64_t step) {
    return testing::planted_batches(config, step, PlantedStep{});
  }
};

// A loss that is far too large once, by an op that makes one value too large.
Injector::Options one_bit(float value) {
  return {.op = "bias_gelu", .module = "layers.0.mlp", .element = 7, .value = value, .times = 1};
}

const float kInfinity = std::numeric_limits<float>::infinity();

TEST_F(StepAutopsyTest, ATransientFaultLeavesNoTrace) {
  for (const Overrides& more :
       {Overrides{}, Overrides{"moe_config.num_experts=4", "moe_config.moe_aux_loss_coeff=0.01"},
        testing::kDropout}) {
    const Overrides overrides =
        testing::joined({{"model_config.position_embedding_type=rope"}, more});
    Trainer clean(overrides);
    Trainer struck(overrides);
    StepAutopsy autopsy(struck.cell, struck.config, {});
    for (int64_t step = 0; step < 3; ++step) {
      const StepResult expected = clean.cell(batches(clean.config, step));
      Injector::Options fault = one_bit(kInfinity);
      if (!more.empty() && more.front().starts_with("moe")) {
        fault = {.op = "moe_unpermute", .module = "layers.0.mlp", .value = kInfinity, .times = 1};
      }
      fault.times = step == 1 ? 1 : 0;
      const Injector injector(fault);
      const StepResult found = struck.cell(batches(struck.config, step));
      EXPECT_EQ(injector.injected(), step == 1 ? 1 : 0);
      EXPECT_EQ(found.loss, expected.loss);
      EXPECT_EQ(found.grad_norm, expected.grad_norm);
      EXPECT_EQ(found.local_losses, expected.local_losses);
      ASSERT_EQ(found.moe.has_value(), expected.moe.has_value());
      if (found.moe) {
        EXPECT_EQ(found.moe->aux_loss, expected.moe->aux_loss);
        EXPECT_EQ(found.moe->layers.at(1).tokens_per_expert,
                  expected.moe->layers.at(1).tokens_per_expert);
      }
    }
    EXPECT_EQ(autopsy.anomalies(), 1);
    EXPECT_TRUE(autopsy.findings()->transient);
    EXPECT_EQ(struck.cell.position().applied, 3);
    testing::expect_states_equal(get_logical_state(*struck.model), get_logical_state(*clean.model));
  }
}

TEST_F(StepAutopsyTest, ASkippedStepChangesNothing) {
  Trainer trainer(
      Overrides{"training_config.on_anomaly=skip", "training_config.loss_spike_threshold=1.5",
                "training_config.loss_spike_window=2", "optimizer_config.learning_rate=1e-4"});
  StepAutopsy autopsy(trainer.cell, trainer.config, {});
  const auto run = [&](int64_t step) {
    FinishedStep finished;
    finished.result = trainer.cell(batches(trainer.config, step));
    autopsy.after(finished);
    return finished;
  };
  for (int64_t step = 0; step < 3; ++step) {
    run(step);
  }
  const State before = get_logical_state(*trainer.model);
  FinishedStep spike;
  {
    const Injector injector({.op = "linear_cross_entropy_sum", .value = 1e4F});
    spike = run(3);
  }
  ASSERT_TRUE(spike.result.set_aside);
  EXPECT_GT(spike.result.loss, 5);
  EXPECT_EQ(autopsy.findings()->fault.kind, FaultKind::kGrew);
  EXPECT_TRUE(spike.failure.empty());
  EXPECT_EQ(trainer.cell.position().seen, 4);
  EXPECT_EQ(trainer.cell.position().applied, 3);
  EXPECT_EQ(trainer.cell.position().skipped, 1);
  testing::expect_states_equal(get_logical_state(*trainer.model), before);
  EXPECT_FALSE(run(4).result.set_aside);
  EXPECT_EQ(trainer.cell.position().applied, 4);
}

TEST_F(StepAutopsyTest, StopEndsTheRunWithTheSentence) {
  for (const Overrides& keys : {Overrides{"training_config.on_anomaly=stop"},
                                Overrides{"training_config.check_for_nan_in_grad=True"}}) {
    Trainer trainer(keys);
    StepAutopsy autopsy(trainer.cell, trainer.config, {});
    const State before = get_logical_state(*trainer.model);
    Injector::Options fault = one_bit(kInfinity);
    fault.times = -1;
    const Injector injector(fault);
    FinishedStep finished;
    finished.result = trainer.cell(batches(trainer.config, 0));
    autopsy.after(finished);
    EXPECT_THAT(finished.failure, HasSubstr("op bias_gelu of "));
    EXPECT_THAT(finished.failure, HasSubstr("layers.0.mlp made inf out of finite values"));
    testing::expect_states_equal(get_logical_state(*trainer.model), before);
  }
}

// As it was without an autopsy: what is not finite updates nothing, and the run goes on.
TEST_F(StepAutopsyTest, ContinueIsTheDefault) {
  Trainer trainer;
  StepAutopsy autopsy(trainer.cell, trainer.config, {});
  Injector::Options fault = one_bit(kInfinity);
  fault.times = -1;
  const Injector injector(fault);
  for (int64_t step = 0; step < 5; ++step) {
    FinishedStep finished;
    finished.result = trainer.cell(batches(trainer.config, step));
    autopsy.after(finished);
    EXPECT_FALSE(finished.result.set_aside);
    EXPECT_TRUE(finished.failure.empty());
  }
  EXPECT_EQ(autopsy.anomalies(), 5);
  EXPECT_EQ(trainer.cell.position().applied, 0);
  EXPECT_EQ(injector.injected(), 5 + 3) << "from the fourth in a row on none is run again";
}

// The scale comes down again and again: what overflows is no anomaly.
TEST_F(StepAutopsyTest, FiveHundredStepsThatScaleDownAreNone) {
  Trainer trainer(
      Overrides{"training_config.fp16=True", "training_config.loss_scale_value=16777216",
                "training_config.loss_scale_factor=4", "training_config.loss_scale_window=5",
                "optimizer_config.learning_rate=1e-3"});
  StepAutopsy autopsy(trainer.cell, trainer.config, {});
  int64_t overflows = 0;
  for (int64_t step = 0; step < 500; ++step) {
    overflows += trainer.cell(batches(trainer.config, step)).finite ? 0 : 1;
  }
  EXPECT_GT(overflows, 20);
  EXPECT_EQ(autopsy.anomalies(), 0);
  EXPECT_EQ(trainer.cell.position().applied, 500 - overflows);
}

TEST_F(StepAutopsyTest, WithUpdatesInBackwardTheLossIsExaminedFirst) {
  Trainer trainer(Overrides{"optimizer_config.optimizer_in_backward=True",
                            "optimizer_config.clip_grad=0.0", "training_config.on_anomaly=skip"});
  StepAutopsy autopsy(trainer.cell, trainer.config, {});
  trainer.cell(batches(trainer.config, 0));
  EXPECT_EQ(trainer.cell.position().applied, 1);
  const State before = get_logical_state(*trainer.model);
  {
    Injector::Options fault = one_bit(kInfinity);
    fault.times = -1;
    const Injector injector(fault);
    EXPECT_TRUE(trainer.cell(batches(trainer.config, 1)).set_aside);
  }
  ASSERT_NE(autopsy.findings(), nullptr);
  EXPECT_EQ(autopsy.findings()->fault.op.op, "bias_gelu");
  testing::expect_states_equal(get_logical_state(*trainer.model), before);
  const StepResult next = trainer.cell(batches(trainer.config, 2));
  EXPECT_TRUE(std::isfinite(next.grad_norm));
  EXPECT_EQ(trainer.cell.position().applied, 2);
}

TEST_F(StepAutopsyTest, WithUpdatesInBackwardATransientFaultLeavesNoTrace) {
  const Overrides keys = {"optimizer_config.optimizer_in_backward=True",
                          "optimizer_config.clip_grad=0.0"};
  Trainer clean(keys);
  Trainer struck(keys);
  StepAutopsy autopsy(struck.cell, struck.config, {});
  const StepResult expected = clean.cell(batches(clean.config, 0));
  const Injector injector(one_bit(kInfinity));
  const StepResult found = struck.cell(batches(struck.config, 0));
  EXPECT_TRUE(autopsy.findings()->transient);
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_EQ(found.grad_norm, expected.grad_norm);
  testing::expect_states_equal(get_logical_state(*struck.model), get_logical_state(*clean.model));
}

TEST_F(StepAutopsyTest, KeysThatHaveNoEffectAreRefused) {
  for (const char* key :
       {"training_config.loss_spike_threshold=2", "training_config.on_anomaly=stop"}) {
    try {
      testing::small_config({"training_config.autopsy=False", key});
      ADD_FAILURE() << key;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("autopsy"));
    }
  }
}

}  // namespace
}  // namespace step_autopsy_test
}  // namespace tapestry
