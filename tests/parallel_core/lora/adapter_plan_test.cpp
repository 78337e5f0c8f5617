#include "parallel_core/lora/adapter_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/peft_plan.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::joined;
using testing::Overrides;
using testing::small_config;

const Overrides kLlamaNames = {"model_config.position_embedding_type=rope",
                               "model_config.normalization=RMSNorm",
                               "model_config.hidden_act=swiglu",
                               "model_config.add_bias_linear=False",
                               "model_config.group_query_attention=True",
                               "model_config.num_query_groups=2",
                               "model_config.untie_embeddings_and_output_weights=True"};
const Overrides kGpt2Names = {
    "model_config.position_embedding_type=learned_absolute", "model_config.normalization=LayerNorm",
    "model_config.hidden_act=fast_gelu", "model_config.add_bias_linear=True",
    "model_config.untie_embeddings_and_output_weights=False"};

AdapterPlan plan_of(const Overrides& model, const Overrides& lora) {
  return plan_adapter(
      small_config(joined({model, {"lora_config.use_lora=True"}, lora})).model_config);
}

std::string targets(const std::string& patterns, const std::string& cells = "") {
  return "lora_config.target_cells=[{target_cells: [" + patterns + "]}" + cells + "]";
}

std::vector<std::string> modules_of(const AdapterPlan& plan) {
  std::vector<std::string> out;
  for (const AdaptedModule& module : plan.modules) {
    out.push_back(module.module);
  }
  return out;
}

TEST(AdapterPlan, NothingWithoutUseLora) {
  const AdapterPlan plan = plan_adapter(small_config(kLlamaNames).model_config);
  EXPECT_THAT(plan.modules, IsEmpty());
}

TEST(AdapterPlan, ExcludedCellsGetNone) {
  const std::string exclude = "lora_config.exclude_cells=";
  const AdapterPlan plan = plan_of(
      kLlamaNames, {targets("'.*(q|k)_proj'"), exclude + "['.*layers.1.*', '.*wk', '.*gate']"});
  EXPECT_THAT(modules_of(plan), ElementsAre("layers.0.attention.wq"));
  EXPECT_THAT(plan.warnings,
              ElementsAre(HasSubstr("exclude_cells: '.*gate' excludes nothing that would get")));
  // A cell in memory means all that is in it.
  EXPECT_EQ(plan_of(kLlamaNames, {exclude + "['.*qkv_proj']"}).modules.size(), 8U);
  EXPECT_THAT(message_of<ValueError>([&] { plan_of(kLlamaNames, {exclude + "['.*']"}); }),
              HasSubstr("exclude_cells: excludes every module"));
}

// PEFT has a word for it, where that is shorter than the names of all the others.
TEST(AdapterPlan, FilesSayWhatIsExcluded) {
  const TransformerConfig config =
      small_config(joined({kLlamaNames,
                           {"lora_config.use_lora=True", targets("'.*_proj'"),
                            "lora_config.exclude_cells=['.*layers.1.*k_proj', '.*o_proj']"}}))
          .model_config;
  const PeftConfig peft = peft_config_of(config, "base");
  EXPECT_THAT(peft.targets.names,
              ::testing::UnorderedElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                              "up_proj", "down_proj"));
  EXPECT_THAT(peft.excluded.names, ::testing::UnorderedElementsAre("1.self_attn.k_proj", "o_proj"));
  const PeftModules modules(peft, "adapter_config.json");
  EXPECT_TRUE(modules.targets("model.layers.0.self_attn.k_proj"));
  EXPECT_FALSE(modules.targets("model.layers.1.self_attn.k_proj"));
  // A run that starts from the file has the same modules.
  TransformerConfig again = config;
  again.lora = lora_config_of(peft, config, "adapter_config.json");
  EXPECT_EQ(modules_of(plan_adapter(again)), modules_of(plan_adapter(config)));
}

TEST(AdapterPlan, AdaptersStartAsTheirDeviationsSay) {
  const auto start = [](const Overrides& more) {
    const AllConfig config =
        small_config(joined({kLlamaNames, {"lora_config.use_lora=True"}, more}));
    testing::State out;
    for (auto& [name, tensor] : get_logical_state(*get_model(config))) {
      out[name] = tensor;
    }
    return out;
  };
  const auto deviation = [](const testing::State& state, const std::string& name) {
    const std::vector<double> values = state.at(name).to_vector<double>();
    double squares = 0;
    for (const double value : values) {
      squares += value * value;
    }
    return std::sqrt(squares / static_cast<double>(values.size()));
  };
  const std::string a = "layers.0.attention.wq.lora_A.weight";
  const std::string b = "layers.0.attention.wq.lora_B.weight";
  const testing::State usual = start({});
  EXPECT_LE(testing::largest(usual.at(a)), 1 / std::sqrt(32.0));
  EXPECT_EQ(testing::largest(usual.at(b)), 0);
  const testing::State normal = start({"lora_config.lora_a_std=2.0", "lora_config.lora_b_std=0.5"});
  // Of 256 normal numbers: within five standard errors, sigma / sqrt(512).
  EXPECT_NEAR(deviation(normal, a), 2, 5 * 2 / std::sqrt(512.0));
  EXPECT_NEAR(deviation(normal, b), 0.5, 5 * 0.5 / std::sqrt(512.0));
}

TEST(AdapterPlan, AllMatricesOfAttentionAndMlpWithoutTargets) {
  const AdapterPlan plan = plan_of(kLlamaNames, {});
  ASSERT_EQ(plan.modules.size(), 14U);
  const AdaptedModule& first = plan.modules.front();
  EXPECT_EQ(first.cell, "language_model.encoder.layers.0.attention.qkv_proj");
  EXPECT_EQ(first.module, "layers.0.attention.wq");
  EXPECT_EQ(first.hf_path, "model.layers.0.self_attn.q_proj");
  EXPECT_THAT(first.weights, ElementsAre("layers.0.attention.wq.weight"));
  EXPECT_EQ(first.in_features, 32);
  EXPECT_EQ(first.rank, 8);
  EXPECT_EQ(first.scale, 4);
  EXPECT_EQ(plan.modules.back().module, "layers.1.feed_forward.w_down");
  EXPECT_EQ(plan.modules.back().in_features, 48);
  EXPECT_THAT(plan.warnings, IsEmpty());
}

TEST(AdapterPlan, APatternMatchesCellsLogicalNamesOrPathsOfHuggingFace) {
  const char* const kLayerOne[] = {"\".*layers.1.self_attn.q_proj\"",
                                   "\"layers\\\\.1\\\\.attention\\\\.wq\""};
  for (const char* pattern : kLayerOne) {
    EXPECT_THAT(modules_of(plan_of(kLlamaNames, {targets(pattern)})),
                ElementsAre("layers.1.attention.wq"))
        << pattern;
  }
  EXPECT_THAT(
      modules_of(plan_of(kLlamaNames, {targets("\".*layers.0.*qkv_proj\"")})),
      ElementsAre("layers.0.attention.wq", "layers.0.attention.wk", "layers.0.attention.wv"));
  // It is the end of a cell's name too, but means the module that it names.
  EXPECT_THAT(modules_of(plan_of(kLlamaNames, {targets("\".*v_proj\"")})),
              ElementsAre("layers.0.attention.wv", "layers.1.attention.wv"));
}

TEST(AdapterPlan, AFusedMatrixOfAFileIsOneModule) {
  const AdapterPlan plan = plan_of(kGpt2Names, {targets("\".*c_attn\"")});
  ASSERT_EQ(plan.modules.size(), 2U);
  const AdaptedModule& module = plan.modules.front();
  EXPECT_EQ(module.module, "layers.0.attention.wqkv");
  EXPECT_EQ(module.hf_path, "transformer.h.0.attn.c_attn");
  EXPECT_THAT(module.weights,
              ElementsAre("layers.0.attention.wq.weight", "layers.0.attention.wk.weight",
                          "layers.0.attention.wv.weight"));
  EXPECT_EQ(lora_a_name(module), "layers.0.attention.wqkv.lora_A.weight");
  EXPECT_EQ(lora_b_name(module.weights[1]), "layers.0.attention.wk.lora_B.weight");
}

TEST(AdapterPlan, CellsHaveRanksAndAlphasOfTheirOwn) {
  const AdapterPlan plan =
      plan_of(kLlamaNames, {"lora_config.lora_alpha=6", "lora_config.use_rslora=True",
                            targets("\".*(q|v)_proj\"",
                                    ", {cell: \".*1.*v_proj\", rank: 4, alpha: 5}, "
                                    "{cell: \".*v_proj\", rank: 2}")});
  ASSERT_EQ(plan.modules.size(), 4U);
  EXPECT_EQ(plan.modules[0].rank, 8);
  EXPECT_DOUBLE_EQ(plan.modules[0].scale, 6 / std::sqrt(8.0));
  EXPECT_EQ(plan.modules[1].rank, 2);
  EXPECT_DOUBLE_EQ(plan.modules[1].scale, 6 / std::sqrt(2.0));
  EXPECT_EQ(plan.modules[3].rank, 4);
  EXPECT_DOUBLE_EQ(plan.modules[3].scale, 5 / 2.0);
}

TEST(AdapterPlan, WhatGetsNoAdapterIsWarnedOf) {
  const AdapterPlan plan =
      plan_of(kLlamaNames, {targets("\".*q_proj\", \".*norm\", \".*embed.*\", \".*nothing\"")});
  EXPECT_EQ(plan.modules.size(), 2U);
  ASSERT_EQ(plan.warnings.size(), 3U);
  EXPECT_THAT(plan.warnings[0], HasSubstr("'.*norm' also matches layers.0.attention_norm"));
  EXPECT_THAT(plan.warnings[1], HasSubstr("tok_embeddings"));
  EXPECT_THAT(plan.warnings[2], HasSubstr("'.*nothing' matches nothing"));
}

TEST(AdapterPlan, SaysWhatCannotBeMeant) {
  const auto message = [](const Overrides& lora) {
    return message_of<ValueError>([&] { plan_of(kLlamaNames, lora); });
  };
  EXPECT_THAT(message({targets("q_proj")}),
              HasSubstr("no module matches; an expression must match a whole name, such as "
                        "'layers.0.attention.wq', 'model.layers.0.self_attn.q_proj'"));
  EXPECT_THAT(message({targets("\"(.*\"")}), HasSubstr("'(.*' is no regular expression"));
  EXPECT_THAT(message({targets("\".*q_proj\"", ", {cell: \".*k_proj\", rank: 2}")}),
              HasSubstr("the cell '.*k_proj' with a rank or alpha of its own matches no module"));
  EXPECT_THAT(message({"lora_config.modules_to_save=[lm_heads]"}),
              HasSubstr("'lm_heads' matches nothing of the model"));
  EXPECT_THAT(message({"lora_config.modules_to_save=[o_proj]"}),
              HasSubstr("layers.0.attention.wo, which has an adapter"));
  EXPECT_THAT(message({targets("\".*o_proj\""), "lora_config.modules_to_save=[k_proj]"}),
              HasSubstr("layers.0.attention.wk, which is one parameter with others"));
}

TEST(AdapterPlan, StackedExpertsHaveAdaptersWhereTheyAreNamed) {
  const auto of = [](const Overrides& lora) { return plan_of(testing::gpt_oss(), lora); };
  for (const AdaptedModule& module : of({}).modules) {
    EXPECT_EQ(module.experts, 0) << module.module;
  }
  const AdapterPlan plan = of({targets("'.*experts.gate_up_proj'")});
  ASSERT_EQ(plan.modules.size(), 2U);
  const AdaptedModule& first = plan.modules.front();
  EXPECT_EQ(first.module, "layers.0.moe.experts.w_gate_up");
  EXPECT_EQ(first.hf_path, "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(first.experts, 4);
  EXPECT_EQ(lora_a_name(first, 3), "layers.0.moe.experts.3.w_gate_up.lora_A.weight");
  EXPECT_THAT(message_of<ValueError>([&] {
                of({targets("'.*down_proj'"), "lora_config.use_dora=True"});
              }),
              HasSubstr("no magnitudes"));
  EXPECT_THAT(message_of<ValueError>([&] {
                of({targets("'.*down_proj'"), "lora_config.lora_dropout=0.1"});
              }),
              HasSubstr("no dropout"));
}

TEST(AdapterPlan, AnOutputLayerThatIsTrainedWholeHasAMatrixOfItsOwn) {
  Overrides tied = kLlamaNames;
  tied.back() = "model_config.untie_embeddings_and_output_weights=False";
  EXPECT_THAT(plan_of(tied, {"lora_config.modules_to_save=[lm_head]"}).saved_modules,
              ElementsAre("lm_head.weight"));
  EXPECT_THAT(plan_of(tied, {"lora_config.modules_to_save=[embed_tokens]"}).saved_modules,
              ElementsAre("tok_embeddings.weight"));
}

TEST(AdapterPlan, AnExpressionThatTakesForEverIsGivenUp) {
  const Overrides lora = {targets("\"((a|l|m|o|d|e)+)+x\"")};
  EXPECT_THAT(message_of<ValueError>(
                  [&] { plan_of(joined(kLlamaNames, {"model_config.num_layers=2"}), lora); }),
              ::testing::AnyOf(HasSubstr("was given up"), HasSubstr("no module matches")));
}

TEST(AdapterPlan, ModulesToSaveAreTensors) {
  EXPECT_THAT(
      plan_of(kLlamaNames, {"lora_config.modules_to_save=[lm_head, \"layers.1.*norm\"]"})
          .saved_modules,
      ElementsAre("lm_head.weight", "layers.1.attention_norm.weight", "layers.1.ffn_norm.weight"));
  EXPECT_THAT(plan_of(kGpt2Names, {targets("\".*c_fc\""), "lora_config.modules_to_save=[c_attn]"})
                  .saved_modules.size(),
              12U);
}

TEST(AdapterPlan, BiasesAreThoseOfTheAdaptedMatrices) {
  const Overrides bias = {"lora_config.bias=lora_only"};
  const Overrides mlp = {targets("\".*c_fc\""), "lora_config.bias=lora_only"};
  const AdapterPlan plan = plan_of(joined(kGpt2Names, {"model_config.num_layers=2"}), mlp);
  EXPECT_THAT(plan.saved_modules,
              ElementsAre("layers.0.feed_forward.w_up.bias", "layers.1.feed_forward.w_up.bias"));
  EXPECT_TRUE(is_adapted_bias(plan, "layers.1.feed_forward.w_up.bias"));
  EXPECT_FALSE(is_adapted_bias(plan, "layers.1.feed_forward.w_down.bias"));
  EXPECT_FALSE(is_adapted_bias(plan, "layers.1.feed_forward.w_up.weight"));
  EXPECT_THAT(message_of<ValueError>([&] { plan_of(kLlamaNames, bias); }),
              HasSubstr("no matrix that has an adapter has a bias"));
  // Queries, keys and values have one bias in memory.
  EXPECT_THAT(message_of<ValueError>([&] {
                plan_of(joined(kLlamaNames, {"model_config.qkv_has_bias=True"}),
                        joined(bias, {targets("\".*q_proj\"")}));
              }),
              ::testing::AllOf(HasSubstr("lora_config.bias"), HasSubstr("layers.0.attention.wv")));
}

TEST(AdapterPlan, KnowsTheNamesOfTheModel) {
  // Every cell and every logical tensor that the plan speaks of is one of the model.
  for (const Overrides& model : {kLlamaNames, kGpt2Names}) {
    const AllConfig config =
        small_config(joined(model, {"lora_config.use_lora=True",
                                    "lora_config.modules_to_save=[\".*norm.*\", \".*embed.*\"]"}));
    const auto made = get_model(config);
    std::set<std::string> paths;
    std::set<std::string> tensors;
    for (const auto& entry : made->named_modules()) {
      paths.insert(entry.name);
    }
    for (const auto& entry : made->named_parameters()) {
      for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
        tensors.insert(logical.name);
      }
    }
    const AdapterPlan plan = plan_adapter(config);
    EXPECT_FALSE(plan.saved_modules.empty());
    for (const std::string& tensor : plan.saved_modules) {
      EXPECT_TRUE(tensors.contains(tensor)) << tensor;
    }
    for (const AdaptedModule& module : plan.modules) {
      EXPECT_TRUE(paths.contains(module.cell)) << module.cell;
      EXPECT_TRUE(tensors.contains(lora_a_name(module))) << module.module;
      for (const std::string& weight : module.weights) {
        EXPECT_TRUE(tensors.contains(weight)) << weight;
        EXPECT_TRUE(tensors.contains(lora_b_name(weight))) << weight;
      }
    }
  }
}

}  // namespace
}  // namespace tapestry
