// Keys for the formulas of MindFormers 2.0, and what of them is refused or has no effect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/config/init_configs.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Keys = std::vector<std::string>;

AllConfig model_with(const Keys& keys) {
  return init_configs_from_text(
      "training_config: {training_iters: 4}\nmodel_config:\n  vocab_size: 32\n  num_layers: 4\n"
      "  num_attention_heads: 4\n  hidden_size: 16\n  ffn_hidden_size: 24\n  seq_length: 8\n"
      "  position_embedding_type: rope\n",
      "f.yaml", {.overrides = keys});
}
std::string refusal_of(const Keys& keys) {
  return message_of<ValueError>([&] { model_with(keys); });
}
Keys joined_keys(Keys first, const Keys& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const Keys kMixture = {"moe_config.num_experts=6", "moe_config.moe_router_topk=2"};

TEST(FormulaKeys, ScoresAreChosenByName) {
  EXPECT_EQ(model_with(joined_keys(kMixture, {"moe_config.moe_router_score_function=sqrtsoftplus"}))
                .model_config.moe.moe_router_score_function,
            "sqrtsoftplus");
  EXPECT_THAT(
      refusal_of(joined_keys(kMixture, {"moe_config.moe_router_score_function=sqrtsoftplus",
                                        "moe_config.moe_router_pre_softmax=True"})),
      Says("moe_router_pre_softmax: ... moe_router_score_function is sqrtsoftplus; leave this"));
  EXPECT_THAT(refusal_of(joined_keys(kMixture, {"moe_config.moe_router_score_function=softplus"})),
              Says("moe_router_score_function ... softplus ... sqrtsoftplus"));
}

TEST(FormulaKeys, TheChoiceOfBalanceLossesNeedsALoss) {
  const Keys scores = joined_keys(kMixture, {"moe_config.moe_aux_loss_choice=scores"});
  EXPECT_THAT(model_with(scores).notes,
              Contains(HasSubstr("moe_aux_loss_choice: has no effect without a balance loss")));
  EXPECT_THAT(model_with(joined_keys(scores, {"moe_config.moe_router_load_balancing_type=aux_loss",
                                              "moe_config.moe_aux_loss_coeff=0.1"}))
                  .notes,
              Each(Not(HasSubstr("moe_aux_loss_choice"))));
  EXPECT_THAT(refusal_of(joined_keys(kMixture, {"moe_config.moe_aux_loss_choice=score"})),
              Says("moe_aux_loss_choice ... score ... scores"));
}

TEST(FormulaKeys, AnglesNeedAQuotientThatIsNotOne) {
  const std::string rotary = "model_config.rotary_config.";
  const Keys yarn = {rotary + "rope_type=yarn", rotary + "rope_scaling_factor=4.0",
                     rotary + "mscale_on_angles=True"};
  const auto on_angles = [&](const Keys& more) {
    return model_with(joined_keys(yarn, more)).model_config.rotary_config.mscale_on_angles;
  };
  EXPECT_TRUE(on_angles({rotary + "mscale=1.0", rotary + "mscale_all_dim=0.707"}));
  // The usual form then, which files of other programs can say.
  EXPECT_FALSE(on_angles({rotary + "mscale=0.707", rotary + "mscale_all_dim=0.707"}));
  EXPECT_THAT(refusal_of(yarn), Says("mscale_on_angles: ... needs mscale and mscale_all_dim"));
  EXPECT_THAT(refusal_of(joined_keys(yarn, {rotary + "mscale=1.0", rotary + "mscale_all_dim=0.707",
                                            rotary + "attention_factor=1.5"})),
              Says("mscale_on_angles: ... attention_factor 1.5 ... leave one of the two out"));
  EXPECT_THAT(model_with({rotary + "mscale_on_angles=True"}).notes,
              Contains(HasSubstr("mscale_on_angles: has no effect without rope_type: yarn")));
}

TEST(FormulaKeys, CountsOfExpertsAreOfLayersThatHaveSome) {
  const std::string monitor = "monitor_config.";
  const Keys counts =
      joined_keys(kMixture, {"moe_config.first_k_dense_replace=1", "model_config.mtp_num_layers=1",
                             monitor + "save_tokens_per_expert_interval=2"});
  EXPECT_THAT(model_with(joined_keys(counts, {monitor + "tokens_per_expert_layers=[1,4]"})).notes,
              Each(Not(HasSubstr("tokens_per_expert"))));
  EXPECT_THAT(refusal_of(joined_keys(counts, {monitor + "tokens_per_expert_layers=[0,2]"})),
              Says("tokens_per_expert_layers: ... layer 0, which has no experts"));
  EXPECT_THAT(refusal_of(joined_keys(counts, {monitor + "tokens_per_expert_layers=[2,5]"})),
              Says("tokens_per_expert_layers: ... layer 5, ... there are 5"));
  EXPECT_THAT(refusal_of(joined_keys(counts, {monitor + "tokens_per_expert_layers=[0]"})),
              Says("tokens_per_expert_layers: ... names no layer; give [N]"));
  EXPECT_THAT(refusal_of(joined_keys(kMixture, {monitor + "save_tokens_per_expert_interval=0"})),
              Says("save_tokens_per_expert_interval ... must be > 0"));
  EXPECT_THAT(model_with({monitor + "save_tokens_per_expert_interval=1"}).notes,
              Contains(HasSubstr("has no effect on a model of num_experts 1")));
  EXPECT_THAT(model_with({monitor + "tokens_per_expert_layers=[1]"}).notes,
              Contains(HasSubstr("has no effect without save_tokens_per_expert_interval")));
}

TEST(FormulaKeys, StartsOfAdaptersAreChecked) {
  const std::string lora = "lora_config.";
  const Keys on = {lora + "use_lora=True"};
  EXPECT_THAT(refusal_of(joined_keys(on, {lora + "lora_a_std=0.0"})),
              Says("lora_a_std ... must be > 0"));
  EXPECT_THAT(refusal_of(joined_keys(on, {lora + "lora_b_std=0.1", lora + "use_dora=True"})),
              Says("lora_b_std: is 0.1 beside use_dora"));
  EXPECT_THAT(refusal_of(joined_keys(on, {lora + "exclude_cells=['a(']"})),
              Says("exclude_cells ... 'a(' is no regular expression"));
  EXPECT_THAT(model_with({lora + "exclude_cells=['.*q_proj']"}).notes,
              Contains(HasSubstr("exclude_cells: has no effect without use_lora")));
}

TEST(FormulaKeys, IntervalOfEventFilesNeedsAFolder) {
  EXPECT_THAT(refusal_of({"tensorboard.tensorboard_log_interval=0"}),
              Says("tensorboard_log_interval ... must be > 0"));
  EXPECT_THAT(model_with({"tensorboard.tensorboard_log_interval=5"}).notes,
              Contains(HasSubstr("has no effect without tensorboard_dir")));
}

}  // namespace
}  // namespace tapestry
