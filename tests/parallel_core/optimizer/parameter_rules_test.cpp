#include "parallel_core/optimizer/parameter_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "autograd/tensor/error.h"
#include "optim/newton_schulz.h"
#include "parallel_core/optimizer/mindformers_names.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/parallel_testing.h"

namespace tapestry::parameter_rules_test {
namespace {

using ::testing::HasSubstr;
using testing::joined;
using testing::Overrides;
using testing::small_config;
using testing::State;

const std::string kOptimizer = "optimizer_config.";

// Latent attention, experts beside a shared one behind a dense layer, one layer that looks ahead.
Overrides deepseek(const Overrides& more = {}) {
  return joined(
      {{"model_config.position_embedding_type=rope", "model_config.normalization=RMSNorm",
        "model_config.hidden_act=swiglu", "model_config.add_bias_linear=False", testing::kUntied,
        "model_config.multi_latent_attention=True", "model_config.q_lora_rank=16",
        "model_config.kv_lora_rank=12", "model_config.qk_head_dim=6",
        "model_config.qk_pos_emb_head_dim=4", "model_config.v_head_dim=8",
        "model_config.mtp_num_layers=1", "moe_config.num_experts=4", "moe_config.moe_router_topk=2",
        "moe_config.moe_ffn_hidden_size=16", "moe_config.moe_layer_freq=[0, 1]",
        "moe_config.moe_shared_expert_intermediate_size=24"},
       more});
}

TEST(ParameterRules, MatchANameAPartOfItOrAPattern) {
  const std::vector<std::string> names = {"layers.0.attention.wq.weight", "other"};
  for (const char* rule : {"layers.0.attention.wq.weight", "wq", "other", "the", "*.wq.*", "o*r",
                           "layers.[0-3].*", "layers.[!1].*", "layers.?.attention*", "*"}) {
    EXPECT_TRUE(rule_matches(rule, names)) << rule;
  }
  for (const char* rule : {"wk", "*.wq", "layers.[1-3].*", "Other", "wq?", "layers.1", "**x"}) {
    EXPECT_FALSE(rule_matches(rule, names)) << rule;
  }
}

TEST(ParameterRules, NamesOfMindFormers) {
  const std::map<std::string, std::string> names = {
      {"tok_embeddings.weight", "embedding.word_embeddings.weight"},
      {"lm_head.weight", "output_layer.weight"},
      {"final_norm.weight", "decoder.final_layernorm.weight"},
      {"layers.3.attention_norm.weight", "decoder.layers.3.input_layernorm.weight"},
      {"layers.3.attention.wk.bias", "decoder.layers.3.self_attention.linear_qkv.bias"},
      {"layers.3.attention.wkv_a.weight", "decoder.layers.3.self_attention.linear_qkv.weight"},
      {"layers.3.attention.kv_a_norm.weight", "decoder.layers.3.self_attention.k_layernorm.weight"},
      {"layers.10.feed_forward.w_up.weight", "decoder.layers.10.mlp.linear_fc1.weight"},
      {"layers.3.moe.experts.12.w_gate.weight", "decoder.layers.3.mlp.experts.weight1"},
      {"layers.3.moe.experts.0.w_down.weight", "decoder.layers.3.mlp.experts.weight2"},
      {"layers.12.mtp.eh_proj.weight", "mtp.layers.0.eh_proj.weight"},
      {"layers.13.attention.wo.weight",
       "mtp.layers.1.transformer_layer.self_attention.linear_proj.weight"},
      {"layers.3.linear_attention.A_log", ""},
      {"layers.x.attention.wo.weight", ""},
      {"layers.", ""},
      {"", ""},
  };
  for (const auto& [ours, theirs] : names) {
    EXPECT_EQ(mindformers_name(ours, 12), theirs) << ours;
  }
  // Every tensor of a model as theirs has a name there.
  const AllConfig config = small_config(deepseek());
  const auto model = get_model(config);
  for (const auto& entry : model->named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      EXPECT_NE(mindformers_name(logical.name, config.model_config.num_layers), "") << logical.name;
    }
  }
}

// By logical names; the reasons are those of the parameter.
using Choices = std::map<std::string, std::pair<bool, std::string>>;

Choices by_logical_name(const std::vector<ParameterChoice>& choices, const nn::Module& model) {
  std::map<std::string, const ParameterChoice*> of;
  for (const ParameterChoice& choice : choices) {
    of.emplace(choice.parameter, &choice);
  }
  Choices out;
  for (const auto& entry : model.trained_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      const ParameterChoice& choice = *of.at(entry.name);
      out.emplace(logical.name, std::pair(choice.chosen, choice.reason));
    }
  }
  return out;
}

const Overrides kRules = {
    kOptimizer + "weight_decay=0.5",
    kOptimizer + "weight_decay_include=['*final_layernorm*', mlp.router]",
    kOptimizer + "weight_decay_exclude=['*layernorm*', linear_qb, 'mlp.experts.weight2', router]"};

TEST(ParameterRules, TheFirstThatHoldsDecides) {
  const AllConfig config = small_config(deepseek(kRules));
  const auto model = get_model(config);
  const Choices decay = by_logical_name(decay_choices(config, *model), *model);
  const auto is = [&](const std::string& name, bool decays, const std::string& reason) {
    EXPECT_EQ(decay.at(name), std::pair(decays, reason)) << name;
  };
  is("final_norm.weight", true, "weight_decay_include: *final_layernorm*");
  is("layers.2.mtp.final_norm.weight", true, "weight_decay_include: *final_layernorm*");
  is("layers.1.moe.router.weight", true, "weight_decay_include: mlp.router");
  is("layers.0.attention_norm.weight", false, "weight_decay_exclude: *layernorm*");
  is("layers.0.attention.wq_b.weight", false, "weight_decay_exclude: linear_qb");
  is("layers.2.attention.wq_b.weight", false, "weight_decay_exclude: linear_qb");
  is("layers.1.moe.experts.3.w_down.weight", false, "weight_decay_exclude: mlp.experts.weight2");
  is("layers.1.moe.experts.3.w_gate.weight", true, "no rule");
  is("layers.2.mtp.enorm.weight", false, "a vector");
  is("tok_embeddings.weight", true, "no rule");
}

// A bias that a stack holds, [experts, width], is one of vectors.
TEST(ParameterRules, VectorsAndBiasesDoNotDecay) {
  const AllConfig config = small_config(
      testing::gpt_oss({kOptimizer + "weight_decay=0.5", kOptimizer + "weight_decay_exclude=[]"}));
  const auto model = get_model(config);
  const Choices decay = by_logical_name(decay_choices(config, *model), *model);
  for (const auto& entry : model->trained_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      EXPECT_EQ(decay.at(logical.name).first, logical.shape.size() > 1) << logical.name;
    }
  }
  EXPECT_FALSE(decay.at("layers.0.attention.sinks.weight").first);  // not so by its flag's name
  EXPECT_FALSE(decay.at("layers.0.moe.experts.1.w_up.bias").first);
}

// Without lists the flags decide, as they did.
TEST(ParameterRules, WithoutListsFlagsDecide) {
  const AllConfig config = small_config({kOptimizer + "weight_decay=0.5"});
  EXPECT_FALSE(has_decay_rules(config.optimizer_config));
  const auto model = get_model(config);
  const auto found = configured_groups(config, *model, nullptr);
  const auto flags = get_param_groups(*model, 0.5);
  ASSERT_EQ(found.size(), flags.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].names, flags[i].names);
  }
}

TEST(ParameterRules, OneParameterIsNotParted) {
  const AllConfig config = small_config(
      testing::llama({kOptimizer + "weight_decay=0.5", kOptimizer + "weight_decay_exclude=[wk]"}));
  const auto model = get_model(config);
  const std::string message =
      message_of<ValueError>([&] { get_optimizer(config, *model, nullptr); });
  EXPECT_THAT(message, HasSubstr("weight decay of 'layers.0.attention.wq.weight' (no rule) and "
                                 "'layers.0.attention.wk.weight' (weight_decay_exclude: wk)"));
  EXPECT_THAT(message, HasSubstr("qkv_proj.weight', which is updated as a whole"));
  EXPECT_THAT(message, HasSubstr("give rules that match both or neither"));
}

TEST(ParameterRules, GroupsOfOnesOwnHaveNone) {
  for (const char* key : {"weight_decay_include", "weight_decay_exclude"}) {
    const AllConfig config =
        small_config({kOptimizer + "weight_decay=0.5", concat(kOptimizer, key, "=[wo]")});
    const auto model = get_model(config);
    EXPECT_THAT(message_of<ValueError>(
                    [&] { get_optimizer(config, *model, get_param_groups(*model, 0.5)); }),
                HasSubstr(concat(key, " has no effect with groups of one's own")));
  }
}

// With gradients of 0 AdamW only decays.
TEST(ParameterRules, DecayReachesWhatTheyChoose) {
  testing::Trainer trainer(deepseek(joined(kRules, {kOptimizer + "learning_rate=0.1"})));
  testing::jitter(*trainer.model);
  const auto before = get_logical_state(*trainer.model);
  const Choices decay =
      by_logical_name(decay_choices(trainer.config, *trainer.model), *trainer.model);
  data::Batch batch = testing::make_batch(trainer.config, 1);
  batch.loss_mask.assign(batch.loss_mask.size(), 0.0F);
  trainer.cell({batch});
  for (const auto& [name, tensor] : get_logical_state(*trainer.model)) {
    if (decay.contains(name)) {
      EXPECT_LE(testing::distance(tensor, before.at(name) * (decay.at(name).first ? 0.95 : 1.0)),
                1e-6)
          << name;
    }
  }
}

Choices choices_in(int ranks, const ModelParallelSizes& sizes, const Overrides& overrides) {
  const AllConfig config = small_config(deepseek(overrides));
  std::mutex mutex;
  Choices all;
  std::set<std::vector<std::string>> rules;
  std::set<size_t> groups;
  testing::run_parallel(ranks, sizes, [&] {
    const auto model = get_model(config);
    const Choices own = by_logical_name(decay_choices(config, *model), *model);
    std::vector<std::string> names;
    for (const RuleUse& use : rule_uses(config, *model)) {
      names.push_back(use.rule);
    }
    const std::scoped_lock lock(mutex);
    all.insert(own.begin(), own.end());
    for (const auto& [name, choice] : own) {
      EXPECT_EQ(all.at(name), choice) << name;
    }
    rules.insert(names);
    groups.insert(get_optimizer(config, *model)->param_groups().size());
  });
  EXPECT_EQ(rules.size(), 1U);
  EXPECT_EQ(groups.size(), 1U);
  return all;
}

TEST(ParameterRules, ChooseTheSameInEveryLayout) {
  const std::string p = "parallel_config.";
  const Overrides rules =
      joined(kRules, {"model_config.num_layers=4", "moe_config.moe_layer_freq=[0, 1, 0, 1]",
                      kOptimizer + "optimizer_type=Muon", kOptimizer + "adamw_include=[eh_proj]"});
  const Choices one = choices_in(1, {}, rules);
  EXPECT_GT(one.size(), 40U);
  EXPECT_EQ(choices_in(2, {.tensor_model_parallel_size = 2},
                       joined(rules, {p + "tensor_model_parallel_size=2"})),
            one);
  EXPECT_EQ(choices_in(2, {.expert_model_parallel_size = 2},
                       joined(rules, {p + "expert_model_parallel_size=2"})),
            one);
  EXPECT_EQ(choices_in(2, {.pipeline_model_parallel_size = 2},
                       joined(rules, {p + "pipeline_model_parallel_size=2"})),
            one);
}

TEST(ParameterRules, ChooseTheSameInEveryChunk) {
  const std::string p = "parallel_config.";
  const Overrides rules = {
      kOptimizer + "weight_decay=0.5",
      kOptimizer + "weight_decay_exclude=['*layernorm*', 'layers.2', 'linear_fc2']",
      "model_config.num_layers=4"};
  const auto decays = [&](int ranks, const ModelParallelSizes& sizes, const Overrides& more) {
    const AllConfig config = small_config(testing::llama(joined(rules, more)));
    std::mutex mutex;
    Choices all;
    testing::run_parallel(ranks, sizes, [&] {
      const auto model = get_model(config);
      const Choices own = by_logical_name(decay_choices(config, *model), *model);
      const std::scoped_lock lock(mutex);
      all.insert(own.begin(), own.end());
    });
    return all;
  };
  const Choices one = decays(1, {}, {});
  EXPECT_FALSE(one.at("layers.2.attention.wo.weight").first);
  EXPECT_FALSE(one.at("layers.3.feed_forward.w_down.weight").first);
  EXPECT_TRUE(one.at("layers.3.attention.wo.weight").first);
  EXPECT_EQ(
      decays(2, {.pipeline_model_parallel_size = 2, .virtual_pipeline_model_parallel_size = 2},
             {p + "pipeline_model_parallel_size=2", p + "virtual_pipeline_model_parallel_size=2"}),
      one);
}

TEST(ParameterRules, SayWhichAreUsed) {
  const AllConfig config = small_config(
      deepseek({kOptimizer + "weight_decay=0.5", kOptimizer + "weight_decay_include=[nrom, norm]",
                kOptimizer + "weight_decay_exclude=['*.bias']"}));
  const auto model = get_model(config);
  const std::vector<RuleUse> uses = rule_uses(config, *model);
  ASSERT_EQ(uses.size(), 3U);
  EXPECT_EQ(uses[0].rule, "optimizer_config.weight_decay_include: 'nrom'");
  EXPECT_FALSE(uses[0].used);
  EXPECT_TRUE(uses[1].used);
  EXPECT_FALSE(uses[2].used);
}

std::set<std::string> muon_names(const Overrides& overrides) {
  const AllConfig config = small_config(deepseek(overrides));
  const auto model = get_model(config);
  std::set<std::string> out;
  std::set<std::string> muon;
  const auto optimizer = get_optimizer(config, *model);
  for (const optim::ParamGroup& group : optimizer->param_groups()) {
    if (!group.adamw) {
      muon.insert(group.names.begin(), group.names.end());
    }
  }
  for (const auto& entry : model->trained_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      if (muon.contains(entry.name)) {
        out.insert(logical.name);
      }
    }
  }
  return out;
}

TEST(AdamwInclude, LeavesTheRestToMuon) {
  const Overrides muon = {kOptimizer + "optimizer_type=Muon"};
  const std::set<std::string> usual = muon_names(muon);
  EXPECT_TRUE(usual.contains("layers.0.attention.wq_b.weight"));
  EXPECT_TRUE(usual.contains("layers.2.mtp.eh_proj.weight"));
  EXPECT_FALSE(usual.contains("layers.1.moe.router.weight"));
  EXPECT_FALSE(usual.contains("tok_embeddings.weight"));
  const std::set<std::string> theirs = muon_names(
      joined(muon, {kOptimizer + "adamw_include=['*word_embeddings*', '*output_layer*']"}));
  std::set<std::string> expected = usual;
  expected.insert("layers.1.moe.router.weight");
  EXPECT_TRUE(std::includes(theirs.begin(), theirs.end(), expected.begin(), expected.end()));
  EXPECT_FALSE(theirs.contains("tok_embeddings.weight"));
  EXPECT_FALSE(theirs.contains("lm_head.weight"));
  EXPECT_FALSE(theirs.contains("final_norm.weight"));  // a vector
  const std::set<std::string> own = muon_names(
      joined(muon, {kOptimizer + "adamw_include=[router, eh_proj, embed, lm_head, 'linear_q*']"}));
  EXPECT_FALSE(own.contains("layers.1.moe.router.weight"));
  EXPECT_FALSE(own.contains("layers.2.mtp.eh_proj.weight"));
  EXPECT_TRUE(own.contains("layers.1.attention.wq_b.weight"));  // a pattern is of the whole name
  EXPECT_TRUE(muon_names(joined(muon, {kOptimizer + "adamw_include=[]"}))
                  .contains("tok_embeddings.weight"));
}

// The rows of a head that are not rotated, and those that are, are two matrices.
TEST(Muon, TakesLatentAttentionApart) {
  testing::Trainer trainer(
      deepseek({kOptimizer + "optimizer_type=Muon", kOptimizer + "ns_dtype=float32",
                kOptimizer + "momentum=0.0", kOptimizer + "nesterov=False"}));
  const auto before = get_logical_state(*trainer.model);
  const testing::Gradients step =
      testing::run_step(trainer, {testing::make_batch(trainer.config, 4)});
  const auto after = get_logical_state(*trainer.model);
  struct Blocks {
    std::string name;
    std::vector<int64_t> rows;
  };
  const std::vector<Blocks> all = {
      {"layers.0.attention.wq_b.weight", {6, 4}},     {"layers.1.attention.wkv_b.weight", {6, 8}},
      {"layers.2.attention.wkv_b.weight", {6, 8}},    {"layers.1.attention.wkv_a.weight", {12, 4}},
      {"layers.1.attention.wq_a.weight", {16}},       {"layers.0.attention.wo.weight", {32}},
      {"layers.1.moe.experts.2.w_gate.weight", {16}}, {"layers.0.feed_forward.w_up.weight", {48}}};
  const NoGradGuard guard;
  for (const auto& [name, rows] : all) {
    SCOPED_TRACE(name);
    const Tensor gradient = step.tensors.at(name);
    int64_t turn = 0;
    for (const int64_t count : rows) {
      turn += count;
    }
    const auto cut = [&](const Tensor& x, int64_t first, int64_t count) {
      return x.reshape({x.size(0) / turn, turn, x.size(1)})
          .slice(1, first, first + count)
          .contiguous()
          .view({-1, x.size(1)});
    };
    int64_t first = 0;
    for (const int64_t count : rows) {
      const Tensor piece = cut(gradient, first, count);
      const Tensor x = optim::newton_schulz(piece, 5, kFloat32);
      const double scale =
          0.01 * 0.2 * std::sqrt(static_cast<double>(std::max(piece.size(0), piece.size(1))));
      const Tensor moved = cut(before.at(name), first, count) - cut(after.at(name), first, count);
      EXPECT_LE(testing::distance(moved, x * scale), 1e-4);
      first += count;
    }
  }
}

}  // namespace
}  // namespace tapestry::parameter_rules_test
