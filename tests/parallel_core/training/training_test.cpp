#include "parallel_core/training/training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/parallel_state.h"
#include "tests/diagnosis/watched_train.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using data::TempDir;
using testing::make_batch;
using testing::Overrides;
using testing::State;
using testing::Trainer;

StepResult result_of_issue() {
  StepResult result;
  result.loss = 10.3414851;
  result.loss_scale = 4096;
  result.lr = {1.25e-6, 1.25e-6};
  return result;
}

TEST(TrainLogLine, IsTheLineThatLogReadersKnow) {
  EXPECT_EQ(train_log_line({.step = 5, .step_time_ms = 1403.2449}, result_of_issue()),
            "train: Epoch:0, Step:5, Loss: 10.341485, Finite_grads: True, Loss_scale: 4096.0, "
            "Learning_rate: (1.250000e-06,1.250000e-06,), Time: 1403.24 ms");
}

TEST(TrainLogLine, HasWhatFurtherPredictionsAdd) {
  StepResult result = result_of_issue();
  result.mtp_losses = {0.5231044, 0.55};
  EXPECT_THAT(train_log_line({.step = 5}, result),
              ::testing::HasSubstr("Loss: 10.341485, mtp_1_loss: 0.523104, mtp_2_loss: 0.550000, "
                                   "Finite_grads: True, "));
}

TEST(TrainLogLine, EndsWithThePace) {
  const std::string line =
      train_log_line({.step = 5, .step_time_ms = 1403.2449}, result_of_issue());
  Pace pace{.tokens_per_second = 1459.6, .mean_loss = 10.3521171};
  EXPECT_EQ(train_log_line({.step = 5, .step_time_ms = 1403.2449}, result_of_issue(), pace),
            line + ", Tokens/s: 1460, Mean_loss: 10.352117");
  pace.seconds_left = 3723;
  EXPECT_EQ(train_log_line({.step = 5, .step_time_ms = 1403.2449}, result_of_issue(), pace),
            line + ", Tokens/s: 1460, Mean_loss: 10.352117, Remaining: 1:02:03");
}

TEST(LogLine, WhatATaskHasMeasured) {
  EXPECT_EQ(task_log_line({{"rewards/accuracies", 0.875}, {"logps/chosen", -123.4567891}}),
            "task: rewards/accuracies: 0.875, logps/chosen: -123.457");
}

TEST(TrainLogLine, OtherValues) {
  StepResult result = result_of_issue();
  result.loss = -std::numeric_limits<double>::quiet_NaN();  // as x86 makes it; shown without a sign
  result.finite = false;
  result.loss_scale = 1;
  result.lr = {0};
  EXPECT_EQ(train_log_line({.step = 123456, .epoch = 2, .step_time_ms = 0.5}, result),
            "train: Epoch:2, Step:123456, Loss: nan, Finite_grads: False, Loss_scale: 1.0, "
            "Learning_rate: (0.000000e+00,), Time: 0.50 ms");
  EXPECT_THAT(train_log_line({}, result, {.mean_loss = result.loss}),
              ::testing::HasSubstr(", Mean_loss: nan"));
  result.loss_scale = 0.125;
  EXPECT_THAT(train_log_line({}, result), ::testing::HasSubstr("Loss_scale: 0.125, "));
}

// Numbered samples, of which an epoch has ten.
class Samples final : public data::DataSource {
 public:
  explicit Samples(AllConfig config, int64_t size = 1000)
      : config_(std::move(config)), size_(size) {}
  data::Batch micro_batch(data::BatchPosition position,
                          int64_t micro_index,
                          int64_t /*micro_batch_num*/,
                          int64_t micro_batch_size,
                          int64_t /*dp_rank*/,
                          int64_t /*dp_size*/) override {
    const int64_t first = position.first_sample + micro_index * micro_batch_size;
    drawn.push_back(first);
    return make_batch(config_, micro_batch_size, first);
  }
  int64_t seq_length() const override { return config_.model_config.seq_length; }
  int64_t size_in_samples() const override { return size_; }
  int64_t epoch(int64_t first_sample) const override { return first_sample / 10; }
  std::vector<int64_t> drawn;

 private:
  AllConfig config_;
  int64_t size_;
};

class Train : public ::testing::Test {
 protected:
  Train() { initialize_model_parallel(); }
  ~Train() override { destroy_model_parallel(); }

  // A run in the temporary folder.
  TrainSummary run(Overrides overrides, TrainOptions options = {}) {
    overrides.push_back("training_config.output_dir=" + dir_.path());
    Trainer trainer(overrides);
    Samples samples(trainer.config);
    options.checkpoint.directory = dir_.file("checkpoint");
    options.checkpoint.keep_max = trainer.config.training_config.keep_checkpoint_max;
    const TrainSummary summary =
        testing::watched_train(trainer.cell, samples, trainer.config, options);
    drawn_ = samples.drawn;
    weights_ = get_logical_state(*trainer.model);
    return summary;
  }
  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.file("checkpoint"))) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  int64_t metric_lines() const {
    const std::string text = dir_.read("metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  }

  TempDir dir_;
  std::vector<int64_t> drawn_;
  State weights_;
};

TEST_F(Train, RunsTheStepsOverTheMicroBatches) {
  const TrainSummary summary =
      run({"training_config.training_iters=3", "dataset_config.batch_size=2",
           "dataset_config.micro_batch_num=2"});
  EXPECT_EQ(summary.steps, 3);
  EXPECT_FALSE(summary.stopped_on_request);
  EXPECT_EQ(drawn_, (std::vector<int64_t>{0, 2, 4, 6, 8, 10}));
  EXPECT_TRUE(std::isfinite(summary.first_loss));
  EXPECT_NE(summary.first_loss, summary.last_loss);
}

// The first sample is no multiple of the batch: the steps before had another one.
TEST_F(Train, BeginsItsDataWhereItIsTold) {
  run({"training_config.training_iters=2", "dataset_config.batch_size=4"},
      {.start = data::BatchPosition{7, 21}});
  EXPECT_EQ(drawn_, (std::vector<int64_t>{21, 25}));
  // The second epoch ends with sample 19.
  const TrainSummary summary = run({"training_config.training_iters=0", "training_config.epochs=2",
                                    "dataset_config.batch_size=2"},
                                   {.start = data::BatchPosition{3, 15}});
  EXPECT_EQ(summary.steps, 3);
  EXPECT_EQ(drawn_, (std::vector<int64_t>{15, 17, 19}));
}

TEST_F(Train, EndsWithTheEpochs) {
  // Five steps of two samples are an epoch.
  EXPECT_EQ(run({"training_config.training_iters=0", "training_config.epochs=2",
                 "dataset_config.batch_size=2"})
                .steps,
            10);
  EXPECT_EQ(run({"training_config.training_iters=7", "training_config.epochs=2",
                 "dataset_config.batch_size=2"})
                .steps,
            7);
}

TEST_F(Train, SavesAtTheIntervalAndAtTheEnd) {
  run({"training_config.training_iters=5", "training_config.save_interval=2"});
  EXPECT_THAT(checkpoints(),
              ::testing::ElementsAre("step_00000002", "step_00000004", "step_00000005"));
  Trainer other;
  load_weights(*other.model, other.config.model_config, dir_.path());
  testing::expect_states_equal(get_logical_state(*other.model), weights_);
}

// Found before the first step, for programs of one's own too. Nothing is free in /proc.
TEST_F(Train, BeginsOnlyWhereACheckpointHasRoom) {
  Trainer trainer({"training_config.training_iters=3"});
  Samples samples(trainer.config);
  TrainOptions options;
  options.checkpoint.directory = "/proc/run/checkpoint";
  EXPECT_THAT([&] { testing::watched_train(trainer.cell, samples, trainer.config, options); },
              ::testing::ThrowsMessage<ValueError>(::testing::AllOf(
                  ::testing::HasSubstr("a checkpoint takes about"),
                  ::testing::HasSubstr("0 B are free in /proc; there is no room for one"))));
  EXPECT_TRUE(samples.drawn.empty());
  Trainer unsaved({"training_config.training_iters=3", "training_config.save_last=False"});
  EXPECT_EQ(testing::watched_train(unsaved.cell, samples, unsaved.config, options).steps, 3);
}

TEST_F(Train, SavesAtTheEndUnlessToldNotTo) {
  run({"training_config.training_iters=3"});
  EXPECT_THAT(checkpoints(), ::testing::ElementsAre("step_00000003"));
  run({"training_config.training_iters=5", "training_config.save_interval=4",
       "training_config.save_last=False"});
  EXPECT_THAT(checkpoints(), ::testing::ElementsAre("step_00000003", "step_00000004"));
}

// Puts a NaN into the weights when it is asked for the batch of a step.
class Spoiler final : public data::DataSource {
 public:
  Spoiler(const AllConfig& config, nn::Module& model, int64_t step)
      : samples_(config), model_(model), step_(step) {}
  data::Batch micro_batch(data::BatchPosition position,
                          int64_t micro_index,
                          int64_t micro_batch_num,
                          int64_t micro_batch_size,
                          int64_t dp_rank,
                          int64_t dp_size) override {
    if (position.step == step_) {
      const NoGradGuard guard;
      nn::Parameter& parameter = *model_.named_parameters().front().parameter;
      parameter.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
      parameter.bump_version();
    }
    return samples_.micro_batch(position, micro_index, micro_batch_num, micro_batch_size, dp_rank,
                                dp_size);
  }
  int64_t seq_length() const override { return samples_.seq_length(); }
  int64_t size_in_samples() const override { return samples_.size_in_samples(); }
  int64_t epoch(int64_t sample) const override { return samples_.epoch(sample); }

 private:
  Samples samples_;
  nn::Module& model_;
  int64_t step_;
};

class Diverging : public Train {
 protected:
  // Trains with weights that are spoilt before the step with this index; what it throws.
  std::string spoilt(Overrides overrides, int64_t step) {
    overrides.push_back("training_config.output_dir=" + dir_.path());
    overrides.push_back("model_config.position_embedding_type=rope");
    Trainer trainer(overrides);
    Spoiler source(trainer.config, *trainer.model, step);
    MetricsWriter metrics(dir_.file("metrics.jsonl"));
    TrainOptions options{.metrics = &metrics};
    options.checkpoint.directory = dir_.file("checkpoint");
    options.checkpoint.keep_max = trainer.config.training_config.keep_checkpoint_max;
    try {
      testing::watched_train(trainer.cell, source, trainer.config, options);
    } catch (const RuntimeError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(Diverging, TenStepsInARowEndTheRun) {
  const std::string message = spoilt({"training_config.training_iters=100"}, 4);
  EXPECT_THAT(message, ::testing::HasSubstr("the last 10 steps (5 to 14) were not finite"));
  EXPECT_THAT(message, ::testing::HasSubstr("not changed since step 4"));
  EXPECT_THAT(message, ::testing::HasSubstr("saved no good checkpoint"));
  EXPECT_EQ(metric_lines(), 14);
  EXPECT_FALSE(std::filesystem::exists(dir_.file("checkpoint")));
}

TEST_F(Diverging, AsManyAsTheKeySays) {
  EXPECT_THAT(
      spoilt({"training_config.training_iters=100", "training_config.max_nonfinite_steps=3"}, 4),
      ::testing::HasSubstr("the last 3 steps (5 to 7)"));
  EXPECT_EQ(metric_lines(), 7);
}

TEST_F(Diverging, WithoutALimitItGoesOnButDoesNotEndWell) {
  const std::string message =
      spoilt({"training_config.training_iters=20", "training_config.max_nonfinite_steps=null"}, 4);
  EXPECT_THAT(message, ::testing::HasSubstr("the last 16 steps (5 to 20)"));
  EXPECT_EQ(metric_lines(), 20);
  EXPECT_FALSE(std::filesystem::exists(dir_.file("checkpoint")));
}

TEST_F(Diverging, AFewBadStepsAtTheEndAreNotSaved) {
  EXPECT_THAT(spoilt({"training_config.training_iters=6", "training_config.save_interval=2"}, 5),
              ::testing::HasSubstr("step 6 was not finite"));
}

// Step 4 is saved with weights that no later step has found good.
TEST_F(Diverging, TheNewestCheckpointDoesNotReplaceAGoodOne) {
  const std::string message =
      spoilt({"training_config.training_iters=100", "training_config.save_interval=1",
              "training_config.keep_checkpoint_max=1"},
             4);
  EXPECT_THAT(checkpoints(), ::testing::ElementsAre("diverged_step_4", "step_00000003"));
  EXPECT_THAT(message, ::testing::HasSubstr("step 4 are spoilt"));
  EXPECT_THAT(message, ::testing::HasSubstr("last good checkpoint is that of step 3"));
  EXPECT_EQ(resolve_checkpoint(dir_.path()), dir_.file("checkpoint/step_00000003"));
}

TEST_F(Train, StopsAndSavesOnRequest) {
  int asked = 0;
  const TrainSummary summary =
      run({"training_config.training_iters=9"}, {.stop_requested = [&] { return ++asked == 3; }});
  EXPECT_TRUE(summary.stopped_on_request);
  EXPECT_EQ(summary.steps, 3);
  EXPECT_THAT(checkpoints(), ::testing::ElementsAre("step_00000003"));
}

TEST_F(Train, WritesMetricsAndDumps) {
  MetricsWriter metrics(dir_.file("metrics.jsonl"));
  run({"training_config.training_iters=3", "training_config.dump_grad_steps=[2]",
       "training_config.dump_weight_steps=[1, 3]", "training_config.save_last=False"},
      {.metrics = &metrics});
  EXPECT_EQ(metric_lines(), 3);
  EXPECT_THAT(dir_.names(),
              ::testing::ElementsAre("grads_step_2.safetensors", "metrics.jsonl",
                                     "weights_step_1.safetensors", "weights_step_3.safetensors"));
  testing::expect_states_equal(read_weights(dir_.file("weights_step_3.safetensors")), weights_);
  const LogicalState gradients = read_weights(dir_.file("grads_step_2.safetensors"));
  EXPECT_EQ(gradients.size(), weights_.size());
  EXPECT_GT(testing::largest(gradients.at("layers.1.attention.wo.weight")), 0);
}

TEST_F(Train, EvaluatesWithoutTouchingTheRun) {
  run({"training_config.training_iters=4", "model_config.hidden_dropout=0.2"});
  const State expected = weights_;
  const AllConfig config = testing::small_config();
  Samples validation(config);
  MetricsWriter metrics(dir_.file("metrics.jsonl"));
  run({"training_config.training_iters=4", "model_config.hidden_dropout=0.2",
       "training_config.eval_interval=2", "training_config.eval_iters=3"},
      {.validation = &validation, .metrics = &metrics});
  testing::expect_states_equal(weights_, expected);
  EXPECT_EQ(validation.drawn, (std::vector<int64_t>{0, 1, 2, 0, 1, 2}));
  const std::string text = dir_.read("metrics.jsonl");
  size_t found = 0;
  for (size_t at = text.find("eval_loss"); at != std::string::npos;
       at = text.find("eval_loss", at + 1)) {
    ++found;
  }
  EXPECT_EQ(found, 2U);
}

TEST_F(Train, NeedsALength) {
  AllConfig config = testing::small_config();
  config.training_config.training_iters = 0;
  Trainer trainer;
  Samples samples(config);
  EXPECT_THROW(train(trainer.cell, samples, config, {}), ValueError);
}

TEST_F(Train, EvaluationIsTheMeanPerToken) {
  const Trainer trainer({"dataset_config.batch_size=2", "dataset_config.micro_batch_num=2"});
  Samples samples(trainer.config);
  double loss = 0;
  double tokens = 0;
  for (int64_t first = 0; first < 12; first += 2) {
    const NoGradGuard guard;
    const ModelOutput out =
        trainer.model->forward(to_model_input(make_batch(trainer.config, 2, first)));
    loss += out.loss.item() * out.token_count;
    tokens += out.token_count;
  }
  EXPECT_NEAR(evaluate(*trainer.model, samples, trainer.config, 3), loss / tokens, 1e-12);
  EXPECT_TRUE(trainer.model->is_training());
  Samples few(trainer.config, 11);  // two global batches of four
  EXPECT_NO_THROW(evaluate(*trainer.model, few, trainer.config, 3));
  EXPECT_EQ(few.drawn.size(), 4U);
  Samples none(trainer.config, 3);
  EXPECT_ERROR(evaluate(*trainer.model, none, trainer.config, 3), ValueError,
               "one global batch needs 4");
}

}  // namespace
}  // namespace tapestry
