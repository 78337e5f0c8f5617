// Names of MindFormers' static configurations that a file may use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel_core/config/config.h"
#include "parallel_core/config/init_configs.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

AllConfig load_static(const std::string& more, std::vector<std::string> overrides = {}) {
  LoadOptions options;
  options.overrides = std::move(overrides);
  return init_configs_from_text(
      "training_config:\n  training_iters: 20\n"
      "model_config:\n  vocab_size: 32\n  num_layers: 2\n  num_attention_heads: 2\n"
      "  hidden_size: 16\n  ffn_hidden_size: 32\n  seq_length: 8\n" +
          more,
      "f.yaml", options);
}

std::string complaints(const std::string& more, std::vector<std::string> overrides = {}) {
  return message_of<ConfigError>([&] { load_static(more, std::move(overrides)); });
}

TEST(StaticNames, RecordedSteps) {
  const AllConfig config = load_static(
      "train_dataset: &train_dataset\n  data_loader:\n    dataset_dir: \"steps\"\n"
      "    shuffle: False\n  input_columns: [\"input_ids\", \"labels\"]\n"
      "train_dataset_task:\n  type: NumpyDataloader\n");
  EXPECT_EQ(config.dataset_config.step_data_dir, "steps");
  EXPECT_EQ(config.dataset_config.shuffle, false);
  EXPECT_TRUE(config.dataset_config.step_data_as_samples);  // as NumpyDataloader batches them
  EXPECT_FALSE(load_static("train_dataset:\n  data_loader:\n    dataset_dir: steps\n")
                   .dataset_config.step_data_as_samples);
  EXPECT_THAT(complaints("train_dataset_task:\n  type: CausalLanguageModelDataset\n"),
              HasSubstr("has no counterpart: of a folder only recorded steps are read"));
}

// As the guides have them: in parallel_config, and in the model's section.
TEST(StaticNames, OfLayouts) {
  const AllConfig config = load_static(
      "  pp_interleave_num: 1\n  offset: [0, 0]\n"
      "parallel_config:\n  data_parallel: 4\n  pipeline_stage: 2\n  micro_batch_num: 6\n");
  EXPECT_EQ(config.parallel_config.pipeline_model_parallel_size, 2);
  EXPECT_EQ(config.parallel_config.data_parallel_size, 4);
  EXPECT_EQ(config.dataset_config.micro_batch_num, 6);
  EXPECT_EQ(config.parallel_config.virtual_pipeline_model_parallel_size, 1);
  EXPECT_TRUE(config.parallel_config.offset.has_value());
  EXPECT_THAT(complaints("parallel_config:\n  pipeline_stage: 2\n"
                         "  pipeline_model_parallel_size: 4\n"),
              HasSubstr("with different values"));
}

TEST(StaticNames, OfModelParallelLayouts) {
  const AllConfig config = load_static(
      "parallel_config:\n  data_parallel: 2\n  model_parallel: 2\n  pipeline_stage: 2\n"
      "  context_parallel: 1\n  use_seq_parallel: True\n  micro_batch_num: 2\n"
      "  pp_interleave_num: 1\n  offset: [0, 0]\n");
  EXPECT_EQ(config.parallel_config.tensor_model_parallel_size, 2);
  EXPECT_EQ(config.parallel_config.pipeline_model_parallel_size, 2);
  EXPECT_EQ(config.parallel_config.context_parallel_size, 1);
  EXPECT_EQ(config.parallel_config.data_parallel_size, 2);
  EXPECT_TRUE(config.parallel_config.sequence_parallel);
  EXPECT_EQ(config.dataset_config.micro_batch_num, 2);
  EXPECT_TRUE(config.parallel_config.offset.has_value());
  EXPECT_FALSE(load_static("parallel_config:\n  model_parallel: 2\n  use_seq_parallel: False\n")
                   .parallel_config.sequence_parallel);
  EXPECT_THAT(complaints("parallel_config:\n  model_parallel: 2\n"
                         "  tensor_model_parallel_size: 4\n"),
              HasSubstr("with different values"));
  EXPECT_THAT(complaints("parallel_config:\n  pp_interleave_num: 2\n"
                         "  virtual_pipeline_model_parallel_size: 4\n  pipeline_stage: 2\n"),
              HasSubstr("with different values"));
}

// The guide has both spellings of the list.
TEST(StaticNames, OfTheDropRate) {
  for (const char* list : {"callback", "callbacks"}) {
    for (const char* depth : {"0", "1"}) {
      const std::string text = std::string(
                                   "moe_config: {expert_num: 4, num_experts_chosen: 2, "
                                   "capacity_factor: 1.5}\n") +
                               list +
                               ":\n  - type: MoEDropRateCallback\n    expert_num: 4\n"
                               "    capacity_factor: 1.5\n    num_layers: 2\n"
                               "    mtp_depth: " +
                               depth + "\n";
      const AllConfig config = load_static(text);
      EXPECT_TRUE(config.moe_config.callback_moe_droprate) << text;
      EXPECT_EQ(config.model_config.mtp_num_layers, 0) << text;
    }
  }
}

TEST(StaticNames, OfSectionsAndOfCallbacks) {
  const AllConfig config = load_static(
      "runner_config:\n  epochs: 2\n  batch_size: 4\n  sink_mode: True\n"
      "runner_wrapper:\n  type: MFTrainOneStepCell\n  scale_sense: 1\n  local_norm: True\n"
      "  loss_scale_value: 65536\n"
      "callbacks:\n  - type: MFLossMonitor\n    per_print_times: 3\n"
      "  - type: CheckpointMonitor\n    prefix: llama\n    save_checkpoint_steps: 7\n"
      "    save_checkpoint_seconds: 0\n    keep_checkpoint_max: 2\n    integrated_save: False\n"
      "    embedding_local_norm_threshold: 270.0\n    checkpoint_format: safetensors\n"
      "parallel:\n  full_batch: False\n  dataset_strategy: [[2, 1], [2, 1]]\n");
  EXPECT_EQ(config.training_config.epochs, 2);
  EXPECT_EQ(config.dataset_config.batch_size, 4);
  EXPECT_EQ(config.training_config.loss_scale, 1.0);
  EXPECT_TRUE(config.monitor_config.local_norm);
  EXPECT_EQ(config.training_config.log_interval, 3);
  EXPECT_EQ(config.training_config.save_interval, 7);
  EXPECT_EQ(config.training_config.save_interval_seconds, std::nullopt);
  EXPECT_EQ(config.training_config.keep_checkpoint_max, 2);
  EXPECT_EQ(config.monitor_config.embedding_local_norm_threshold, 270.0);
  EXPECT_THAT(config.notes,
              AllOf(Contains(AllOf(HasSubstr("f.yaml:13:14"), HasSubstr("sink_mode has no effect"),
                                   HasSubstr("eagerly"))),
                    Contains(HasSubstr("CheckpointMonitor.prefix has no effect")),
                    Not(Contains(HasSubstr("runner_wrapper.type")))));
}

// Of its two intervals, 0 says that the other one counts.
TEST(StaticNames, OfIntervalsThatAreOff) {
  const AllConfig config = load_static(
      "callbacks:\n  - type: CheckpointMonitor\n    save_checkpoint_steps: 0\n"
      "    save_checkpoint_seconds: 60\n");
  EXPECT_EQ(config.training_config.save_interval, std::nullopt);
  EXPECT_EQ(config.training_config.save_interval_seconds, 60.0);
}

TEST(StaticNames, OfAccumulationAndClipping) {
  const AllConfig config = load_static(
      "runner_config:\n  gradient_accumulation_steps: 4\n"
      "runner_wrapper:\n  use_clip_grad: True\n  max_grad_norm: 0.5\n"
      "dataset_config:\n  micro_batch_num: 2\n");
  EXPECT_EQ(config.dataset_config.micro_batch_num, 8);
  EXPECT_EQ(config.optimizer_config.clip_grad, 0.5);
  EXPECT_THAT(complaints("runner_config:\n  gradient_accumulation_steps: 0\n"),
              AllOf(HasSubstr("gradient_accumulation_steps"), HasSubstr("got 0")));
}

TEST(StaticNames, OfMappingsWithAType) {
  const AllConfig fixed = load_static(
      "runner_wrapper:\n  scale_sense:\n    type: FixedLossScaleUpdateCell\n"
      "    loss_scale_value: 64\n");
  EXPECT_EQ(fixed.training_config.loss_scale, 64.0);
  EXPECT_EQ(fixed.training_config.loss_scale_value, std::nullopt);
  const AllConfig dynamic = load_static(
      "runner_wrapper:\n  scale_sense:\n    type: DynamicLossScaleUpdateCell\n"
      "    loss_scale_value: 64\n    scale_factor: 2\n    scale_window: 1000\n");
  EXPECT_EQ(dynamic.training_config.loss_scale, std::nullopt);
  EXPECT_EQ(dynamic.training_config.loss_scale_value, 64.0);
  EXPECT_EQ(dynamic.training_config.loss_scale_factor, 2);
  EXPECT_EQ(dynamic.training_config.loss_scale_window, 1000);
}

TEST(StaticNames, AtTopLevelAndOnTheCommandLine) {
  const std::string on = "monitor_config: {monitor_on: True}\n";
  EXPECT_TRUE(load_static(on + "use_skip_data_by_global_norm: True\n")
                  .monitor_config.use_skip_data_by_global_norm);
  const AllConfig config =
      load_static(on, {"use_checkpoint_health_monitor=True", "runner_wrapper.local_norm=True",
                       "callbacks.CheckpointMonitor.keep_checkpoint_max=9"});
  EXPECT_TRUE(config.monitor_config.use_checkpoint_health_monitor);
  EXPECT_TRUE(config.monitor_config.local_norm);
  EXPECT_EQ(config.training_config.keep_checkpoint_max, 9);
  EXPECT_EQ(config.origins.at("monitor_config.local_norm").kind, ConfigOrigin::Kind::kOverride);
}

// What is not read is told with its place, and what is read is not.
TEST(StaticNames, AsFarAsTheyAreKnown) {
  EXPECT_THAT(complaints("callbacks:\n  - type: MFLossMonitor\n    per_print_times: 1\n"
                         "  - type: CheckpointMonitor\n    enc_key: abc\n"),
              AllOf(HasSubstr("f.yaml:10:1: unknown section 'callbacks'"), HasSubstr("enc_key"),
                    Not(HasSubstr("per_print_times"))));
  EXPECT_THAT(complaints("parallel:\n  full_batch: True\n"),
              AllOf(HasSubstr("f.yaml:11:15: parallel.full_batch: True has no counterpart"),
                    Says("rank reads its own rows")));
  EXPECT_THAT(complaints("runner_wrapper: 3\n"), HasSubstr("unknown section 'runner_wrapper'"));
  EXPECT_THAT(complaints("", {"runner_wrapper.nothing=1"}),
              HasSubstr("--set runner_wrapper.nothing=1"));
  EXPECT_THAT(load_static("callbacks:\nrunner_wrapper: {}\n").notes, IsEmpty());
}

TEST(StaticNames, DoNotContradictOurs) {
  EXPECT_THAT(complaints("dataset_config:\n  batch_size: 2\nrunner_config:\n  batch_size: 4\n"),
              HasSubstr("f.yaml:13:3: dataset_config.batch_size: given as 'batch_size' at "
                        "f.yaml:11:3 and as 'runner_config.batch_size' here"));
  EXPECT_EQ(load_static("dataset_config:\n  batch_size: 4\nrunner_config:\n  batch_size: 4\n")
                .dataset_config.batch_size,
            4);
}

TEST(MonitorConfig, ValuesForEventFilesThatAreNotWrittenGoToTheLog) {
  const AllConfig config = load_static(
      "monitor_config: {local_norm_format: tensorboard, device_local_norm_format: [log, "
      "tensorboard], local_loss_format: log}\n");
  const std::vector<std::string> log = {"log"};
  EXPECT_EQ(config.monitor_config.local_norm_format, log);
  EXPECT_EQ(config.monitor_config.device_local_norm_format, log);
  EXPECT_THAT(config.notes,
              ::testing::ElementsAre(Says("local_norm_format: ... no tensorboard.tensorboard_dir"),
                                     HasSubstr("device_local_norm_format")));
}

TEST(MonitorConfig, WhatCannotStandTogether) {
  const std::string both = complaints(
      "monitor_config:\n  monitor_on: True\n  check_for_global_norm: True\n"
      "use_skip_data_by_global_norm: True\n");
  EXPECT_THAT(
      both, Says("check_for_global_norm ... use_skip_data_by_global_norm ... please choose one."));
  EXPECT_THAT(complaints("use_skip_data_by_global_norm: True\n"),
              Says("f.yaml:10:31: monitor_config.use_skip_data_by_global_norm: ... needs ... "
                   "monitor_config.monitor_on:"));
  EXPECT_THAT(complaints("use_checkpoint_health_monitor: True\n"), HasSubstr("monitor_on: True"));
  EXPECT_THAT(complaints("monitor_config: {global_norm_spike_factor: 3}\n"),
              Says("has no effect without ... use_skip_data_by_global_norm"));
  EXPECT_THAT(complaints("monitor_config: {monitor_on: True}\n",
                         {"use_skip_data_by_global_norm=True",
                          "optimizer_config.optimizer_in_backward=True"}),
              Says("global norm is known"));
  EXPECT_THAT(complaints("monitor_config: {target: ['a(']}\n"),
              Says("'a(' ... no regular expression"));
  for (const char* key :
       {"global_norm_spike_threshold: 0", "global_norm_spike_count_threshold: 0",
        "global_norm_spike_factor: 1", "step_interval: 0", "throughput_baseline: -1"}) {
    EXPECT_THAT(complaints(std::string("monitor_config: {") + key + "}\n"), HasSubstr("must be >"))
        << key;
  }
}

}  // namespace
}  // namespace tapestry
