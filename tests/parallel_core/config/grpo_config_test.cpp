// Keys of reinforcement, and what cannot stand together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/config.h"
#include "parallel_core/config/init_configs.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace grpo_config_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Settings = std::vector<std::string>;

AllConfig load(Settings settings) {
  for (std::string& setting : settings) {
    setting = setting.find('.') == std::string::npos || setting.find('.') > setting.find('=')
                  ? "post_training_config." + setting
                  : setting;
  }
  return init_configs_from_text(
      "training_config: {training_iters: 4}\nmodel_config:\n"
      "  vocab_size: 32\n  num_layers: 2\n  num_attention_heads: 4\n  hidden_size: 16\n"
      "  ffn_hidden_size: 24\n  seq_length: 8\npost_training_config: {task: grpo}\n",
      "f.yaml", {.overrides = settings});
}

std::string refusal(const Settings& settings) {
  return message_of<ValueError>([&] { load(settings); });
}

const std::string kRollouts = "rollouts=stored.jsonl";

TEST(GrpoConfig, Defaults) {
  const AllConfig config = load({kRollouts});
  const PostTrainingConfig& p = config.post_training_config;
  EXPECT_EQ(p.loss_type, std::vector<std::string>{"dapo"});
  EXPECT_EQ(p.beta, 0.0);
  EXPECT_EQ(p.disable_dropout, false);
  EXPECT_EQ(p.num_generations, 8);
  EXPECT_THAT(config.notes, IsEmpty());
}

TEST(GrpoConfig, CompletionsComeFromOnePlace) {
  EXPECT_THAT(refusal({}), Says("post_training_config.data ... is not given ... rollouts"));
  EXPECT_THAT(refusal({kRollouts, "data=[prompts.jsonl]"}),
              Says("post_training_config.rollouts ... leave one of them out"));
}

TEST(GrpoConfig, WhatCannotStandTogether) {
  EXPECT_THAT(refusal({"data=[prompts.jsonl]"}),
              Says("max_completion_length ... is 512 ... no room for a prompt in rows of 8"));
  EXPECT_THAT(refusal({kRollouts, "steps_per_generation=2", "generation_batch_size=16"}),
              Says("post_training_config.generation_batch_size ... 16 ... steps_per_generation 2"));
  EXPECT_THAT(refusal({kRollouts, "training_config.eval_interval=2"}),
              Says("training_config.eval_interval ... task grpo"));
  EXPECT_THAT(refusal({kRollouts, "training_config.rampup_batch_size=[1, 1, 10]",
                       "dataset_config.batch_size=4"}),
              Says("training_config.rampup_batch_size ... task grpo"));
  EXPECT_THAT(refusal({kRollouts, "loss_type=[sigmoid]"}), Says("'sigmoid' is no loss of grpo"));
  EXPECT_THAT(refusal({kRollouts, "loss_type=[dapo, grpo]"}), Says("has 2 losses, expected one"));
}

TEST(GrpoConfig, KeysWithoutEffectAreNoted) {
  const auto note = [](const Settings& settings, const std::string& text) {
    EXPECT_THAT(load(settings).notes, Contains(HasSubstr(text))) << text;
  };
  note({kRollouts, "reward_funcs=[\"length: 3\"]"}, "reward_funcs");
  note({kRollouts, "reference=folder"}, "with beta 0");
  note({kRollouts, "loss_type=sapo", "epsilon=0.3"}, "with loss_type sapo");
  note({kRollouts, "loss_type=cispo", "delta=3"}, "with loss_type cispo");
  note({kRollouts, "loss_type=cispo", "epsilon=0.3", "epsilon_high=4"}, "epsilon");
  note({kRollouts, "vespo_k_pos=3"}, "with loss_type dapo");
  note({kRollouts, "loss_type=luspo"}, "ratios of sequences");
  note({kRollouts, "max_completion_length=3"}, "with stored completions");
  note({kRollouts, "multi_objective_aggregation=normalize_then_sum", "scale_rewards=none"},
       "normalize_then_sum");
  EXPECT_THAT(load({kRollouts, "loss_type=dr_grpo", "max_completion_length=3"}).notes, IsEmpty());
}

}  // namespace
}  // namespace grpo_config_test
}  // namespace tapestry
