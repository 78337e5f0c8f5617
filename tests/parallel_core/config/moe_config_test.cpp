// Mixtures of experts in configurations: spellings, what follows from keys, and what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/config/config.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/show/render.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Settings = std::vector<std::string>;

// Four layers and twelve experts; lines of moe_config begin at 10.
std::string moe_yaml(const std::string& moe, const std::string& more = "") {
  return "training_config: {training_iters: 4}\nmodel_config:\n"
         "  vocab_size: 32\n  num_layers: 4\n  num_attention_heads: 4\n  hidden_size: 16\n"
         "  ffn_hidden_size: 24\n  seq_length: 8\nmoe_config:\n" +
         moe + more;
}
AllConfig load_moe(const std::string& moe,
                   const std::string& more = "",
                   const Settings& overrides = {}) {
  return init_configs_from_text(moe_yaml(moe, more), "f.yaml", {.overrides = overrides});
}
AllConfig with_experts(const Settings& settings = {}) {
  Settings overrides;
  for (const std::string& setting : settings) {
    overrides.push_back(setting.find("_config.") == std::string::npos ? "moe_config." + setting
                                                                      : setting);
  }
  return load_moe("  num_experts: 12\n", "", overrides);
}
MoEConfig moe_of(const Settings& settings) { return with_experts(settings).model_config.moe; }

TEST(MoEConfig, ADenseModelHasNone) {
  const AllConfig config = load_moe("  num_experts: 1\n");
  EXPECT_TRUE(config.model_config.moe == MoEConfig());
  EXPECT_FALSE(is_moe_layer(config.model_config, 0));
  EXPECT_THAT(config.unsupported, IsEmpty());
  EXPECT_THAT(config.notes, IsEmpty());
  const AllConfig idle =
      load_moe("  moe_router_topk: 3\n", "parallel_config: {expert_parallel: 2}\n");
  EXPECT_THAT(idle.notes,
              ElementsAre(HasSubstr("f.yaml:10:20: moe_config.moe_router_topk: has no effect with "
                                    "num_experts 1"),
                          HasSubstr("expert_model_parallel_size: has no effect on a model")));
}

TEST(MoEConfig, WhatModulesSeeIsComplete) {
  const AllConfig config = with_experts();
  const MoEConfig& moe = config.model_config.moe;
  EXPECT_EQ(moe.num_experts, 12);
  EXPECT_EQ(moe.moe_router_topk, 2);
  EXPECT_EQ(moe.moe_ffn_hidden_size, 24);
  EXPECT_EQ(moe.norm_topk_prob, true);
  EXPECT_FALSE(moe.moe_router_pre_softmax);
  EXPECT_THAT(moe.balance_losses, IsEmpty());
  EXPECT_EQ(moe_ffn_hidden_size(config.model_config), 24);
  EXPECT_EQ(expert_tensor_parallel_size(config.parallel_config), 1);
  EXPECT_FALSE(config.moe_config.norm_topk_prob.has_value());  // as it was written
  EXPECT_THAT(config.notes, IsEmpty());
  EXPECT_THAT(config.unsupported, IsEmpty());
}

TEST(MoEConfig, EverySpellingOfAKey) {
  const std::vector<std::pair<Settings, Settings>> cases = {
      {{"expert_num=6"}, {"num_experts=6"}},
      {{"n_routed_experts=6"}, {"num_experts=6"}},
      {{"num_moe_experts=6"}, {"num_experts=6"}},
      {{"num_local_experts=6"}, {"num_experts=6"}},
      {{"num_experts_chosen=3"}, {"moe_router_topk=3"}},
      {{"num_experts_per_tok=3"}, {"moe_router_topk=3"}},
      {{"capacity_factor=1.5"}, {"moe_expert_capacity_factor=1.5"}},
      {{"moe_intermediate_size=8"}, {"moe_ffn_hidden_size=8"}},
      {{"n_shared_experts=2", "moe_intermediate_size=8"},
       {"moe_shared_expert_intermediate_size=16", "moe_ffn_hidden_size=8"}},
      {{"shared_expert_num=2"}, {"moe_shared_expert_intermediate_size=48"}},
      {{"shared_expert_num=0"}, {}},
      {{"shared_expert_intermediate_size=4"}, {"moe_shared_expert_intermediate_size=4"}},
      {{"topk_method=noaux_tc", "n_group=4", "topk_group=2"},
       {"topk_method=noaux_tc", "moe_router_num_groups=4", "moe_router_group_topk=2"}},
      {{"n_group=1", "topk_group=1"}, {}},  // of one group there is nothing to choose
      {{"routed_scaling_factor=2.5"}, {"moe_router_topk_scaling_factor=2.5"}},
      {{"use_gating_sigmoid=True"}, {"moe_router_score_function=sigmoid"}},
      {{"use_gating_sigmoid=False"}, {}},
      {{"balance_via_topk_bias=True", "topk_bias_update_rate=0.01"},
       {"moe_router_enable_expert_bias=True", "moe_router_bias_update_rate=0.01"}},
      {{"z_loss_factor=0.1"}, {"moe_z_loss_coeff=0.1"}},
      {{"z_loss_factor=0"}, {}},
      {{"moe_input_jitter_eps=0"}, {}},
      {{"enable_sdrop=True"}, {"moe_token_drop_policy=position"}},
      {{"enable_sdrop=False"}, {"moe_token_drop_policy=choice"}},
      {{"aux_loss_factor=0.05"},
       {"moe_router_load_balancing_type=aux_loss", "moe_aux_loss_coeff=0.05"}},
      {{"moe_router_load_balancing_type=expert", "moe_aux_loss_coeff=0.1"},
       {"moe_router_load_balancing_type=aux_loss", "moe_aux_loss_coeff=0.1"}},
      {{"capacity_factor=0"}, {}},
      {{"capacity_factor=-1.0"}, {}},
      {{"router_dense_type=float32"}, {}},
      {{"moe_router_dtype=float32"}, {}},
      {{"norm_topk_prob=True"}, {}},
      {{"norm_topk_prob=False"}, {"moe_router_pre_softmax=True"}},
      {{"norm_topk_prob=False", "moe_router_pre_softmax=False"}, {"moe_router_pre_softmax=True"}}};
  for (const auto& [written, meant] : cases) {
    EXPECT_TRUE(moe_of(written) == moe_of(meant)) << ::testing::PrintToString(written);
    EXPECT_THAT(with_experts(written).unsupported, IsEmpty());
  }
}

TEST(MoEConfig, EverySpellingOfTheLayout) {
  for (const char* name :
       {"expert_model_parallel_size", "expert_parallel", "expert_parallel_size"}) {
    EXPECT_EQ(with_experts({concat("parallel_config.", name, "=3")})
                  .parallel_config.expert_model_parallel_size,
              3)
        << name;
  }
  for (const char* name :
       {"parallel_config.expert_tensor_parallel_size", "parallel_config.expert_model_parallel",
        "moe_config.expert_model_parallel", "moe_config.expert_tensor_parallel_size"}) {
    const AllConfig config = with_experts({concat(name, "=2")});
    EXPECT_EQ(config.parallel_config.expert_tensor_parallel_size, 2) << name;
    EXPECT_EQ(expert_tensor_parallel_size(config.parallel_config), 2) << name;
  }
  const AllConfig tp = with_experts({"parallel_config.tensor_model_parallel_size=4"});
  EXPECT_EQ(expert_tensor_parallel_size(tp.parallel_config), 4);
}

// What used to be refused: with cp, and with tp without sequence parallelism.
TEST(MoEConfig, LayoutsThatAreTaken) {
  for (const Settings& layout :
       {Settings{"context_parallel_size=2"}, Settings{"tensor_model_parallel_size=2"},
        Settings{"tensor_model_parallel_size=2", "expert_tensor_parallel_size=1"},
        Settings{"pipeline_model_parallel_size=2"}, Settings{"zero_level=z3"}}) {
    Settings settings = {"parallel_config.expert_model_parallel_size=2"};
    for (const std::string& setting : layout) {
      settings.push_back("parallel_config." + setting);
    }
    EXPECT_THAT(with_experts(settings).unsupported, IsEmpty()) << ::testing::PrintToString(layout);
  }
}

TEST(MoEConfig, GatesFollowScoresAndNorm) {
  struct Row {
    Settings settings;
    bool pre_softmax;
    bool normalised;
  };
  const std::string sigmoid = "moe_router_score_function=sigmoid";
  const std::string pre = "moe_router_pre_softmax=True";
  for (const Row& row :
       {Row{{}, false, true}, Row{{pre}, true, false},
        Row{{pre, "norm_topk_prob=True"}, true, true}, Row{{"norm_topk_prob=False"}, true, false},
        Row{{sigmoid}, false, true}, Row{{sigmoid, "norm_topk_prob=False"}, false, false},
        Row{{sigmoid, "moe_router_topk=1"}, false, true},
        Row{{pre, "moe_router_topk=1"}, true, false}}) {
    const MoEConfig moe = moe_of(row.settings);
    EXPECT_EQ(moe.moe_router_pre_softmax, row.pre_softmax)
        << ::testing::PrintToString(row.settings);
    EXPECT_EQ(moe.norm_topk_prob, row.normalised) << ::testing::PrintToString(row.settings);
  }
}

TEST(MoEConfig, BalanceLosses) {
  const auto losses = [](const Settings& settings) { return moe_of(settings).balance_losses; };
  const std::string type = "moe_router_load_balancing_type=";
  EXPECT_THAT(losses({type + "aux_loss"}), IsEmpty());  // its weight is 0
  EXPECT_THAT(losses({"moe_aux_loss_coeff=0.1"}), IsEmpty());
  EXPECT_THAT(losses({type + "seq_aux_loss", "moe_aux_loss_coeff=0.1"}),
              ElementsAre(MoEBalanceLoss{"seq_aux_loss", 0.1}));
  EXPECT_THAT(losses({type + "device", "moe_aux_loss_coeff=0.1", "expert_group_size=4"}),
              ElementsAre(MoEBalanceLoss{"device", 0.1}));
  EXPECT_THAT(losses({"aux_loss_types=[expert, device, global_aux_loss]",
                      "aux_loss_factors=[0.1, 0.2, 0]", "expert_group_size=3"}),
              ElementsAre(MoEBalanceLoss{"aux_loss", 0.1}, MoEBalanceLoss{"device", 0.2}));
  EXPECT_THAT(losses({"aux_loss_types=expert", "aux_loss_factors=0.3"}),
              ElementsAre(MoEBalanceLoss{"aux_loss", 0.3}));
  EXPECT_THAT(with_experts({"moe_aux_loss_coeff=0.1"}).notes,
              ElementsAre(Says("has no effect with ... moe_router_load_balancing_type")));
}

TEST(MoEConfig, LayersWithExperts) {
  const auto layers = [](const Settings& settings) {
    const TransformerConfig model = with_experts(settings).model_config;
    std::string out;
    for (int64_t i = 0; i < model.num_layers; ++i) {
      out += is_moe_layer(model, i) ? '1' : '0';
    }
    return out;
  };
  EXPECT_EQ(layers({}), "1111");
  EXPECT_EQ(layers({"moe_layer_freq=2"}), "1010");
  EXPECT_EQ(layers({"moe_layer_freq=3"}), "1001");
  EXPECT_EQ(layers({"moe_layer_freq=[0, 1, 1, 0]"}), "0110");
  EXPECT_EQ(layers({"first_k_dense_replace=1"}), "0111");
  EXPECT_EQ(layers({"first_k_dense_replace=3", "moe_layer_freq=1"}), "0001");
}

// Keys that can only mean what is done anyway: a note each, with the reason, and the same model.
TEST(MoEConfig, WhatHasNoEffectIsNoted) {
  for (const char* key :
       {"use_gmm=True", "moe_grouped_gemm=True", "use_fused_ops_topkrouter=True",
        "use_fused_ops_permute=True", "moe_permute_fusion=True", "enable_gmm_safe_tokens=True",
        "use_pad_tokens=True", "max_router_load=7", "use_allgather_dispatcher=True",
        "group_wise_a2a=True", "comp_comm_parallel=True", "comp_comm_parallel_degree=4",
        "enable_deredundency=True", "npu_nums_per_device=8", "use_self_defined_alltoall=True",
        "routing_policy=TopkRouterV2", "ep_extend_tp=False", "dispatch_global_max_bs=9"}) {
    const AllConfig config = with_experts({key});
    EXPECT_THAT(config.notes, ElementsAre(AllOf(Says(concat("--set moe_config.", key)),
                                                HasSubstr("has no effect: "))))
        << key;
    EXPECT_THAT(config.unsupported, IsEmpty()) << key;
    EXPECT_TRUE(config.model_config == with_experts().model_config) << key;
  }
  EXPECT_THAT(with_experts({"use_gmm=False", "max_router_load=131072"}).notes, IsEmpty());
}

TEST(MoEConfig, RefusedForGoodWithAnAlternative) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"enable_cold_hot_expert=True", "moe_router_load_balancing_type"},
      {"hot_expert_num=2", "moe_router_enable_expert_bias"},
      {"update_step=5", "leave this key out"},
      {"cold_token_percent=0.5", "leave this key out"},
      {"moe_module_name=ffn", "leave this key out"},
      {"save_token_distribution=True", "metrics.jsonl"},
      {"cur_layer=1", "metrics.jsonl"},
      {"router_dense_type=bfloat16", "router computes in ... float32"},
      {"moe_router_dtype=float16", "leave this key out"},
      {"moe_router_load_balancing_type=comm", "device pools them into ... expert_group_size"}};
  for (const auto& [key, text] : cases) {
    EXPECT_THAT(with_experts({key}).unsupported,
                ElementsAre(AllOf(Says(concat("--set moe_config.", key)),
                                  HasSubstr(" is refused: "), Says(text))))
        << key;
  }
}

TEST(MoEConfig, NothingIsCalledUnbuilt) {
  for (const char* section : {"moe_config", "parallel_config", "tensorboard"}) {
    for (const config::Key& key : config::find_section(section)->keys) {
      EXPECT_FALSE(key.planned) << section << "." << key.name;
    }
  }
}

TEST(MoEConfig, TheDroprateCallbackRepeatsTheModel) {
  const std::string callback =
      "callbacks:\n  - type: MoEDropRateCallback\n    expert_num: 12\n    capacity_factor: 1.5\n"
      "    num_layers: 4\n    mtp_depth: 0\n";
  const std::string moe = "  num_experts: 12\n  capacity_factor: 1.50\n";
  const AllConfig config = load_moe(moe, callback);
  EXPECT_TRUE(config.moe_config.callback_moe_droprate);
  EXPECT_TRUE(config.model_config.moe.callback_moe_droprate);
  EXPECT_EQ(config.origins.at("moe_config.callback_moe_droprate").text, "f.yaml:13");
  EXPECT_TRUE(
      load_moe(moe + "  callback_moe_droprate: true\n", callback).moe_config.callback_moe_droprate);
  EXPECT_TRUE(load_moe(moe, "callbacks:\n  - type: MoEDropRateCallback\n")
                  .moe_config.callback_moe_droprate);
  // Any factor up to 0 says that nothing is dropped.
  load_moe("  num_experts: 12\n  capacity_factor: -1\n",
           "callbacks:\n  - type: MoEDropRateCallback\n    capacity_factor: -1.0\n");
  const auto wrong = [&](const std::string& text) {
    return message_of<ConfigError>([&] {
      load_moe("  num_experts: 12\n", "callbacks:\n  - type: MoEDropRateCallback\n" + text);
    });
  };
  EXPECT_THAT(wrong("    num_layers: 3\n"),
              Says("f.yaml:13:17: callbacks.MoEDropRateCallback.num_layers: ... 3, ... "
                   "model_config.num_layers ... 4; ... so, or leave it out"));
  // Layers that predict further tokens are those of the model, whatever the callback says.
  EXPECT_TRUE(load_moe(moe, "callback:\n  - type: MoEDropRateCallback\n    mtp_depth: 1\n")
                  .moe_config.callback_moe_droprate);
  EXPECT_THAT(wrong("    expert_num: many\n"),
              HasSubstr("f.yaml:13:17: callbacks.MoEDropRateCallback.expert_num: expected an "
                        "integer"));
  EXPECT_THAT(wrong("    drops: 1\n"), HasSubstr("unknown section 'callbacks'"));
}

TEST(MoEConfig, ReadsBackFromWhatIsSaved) {
  for (const Settings& settings :
       {Settings{}, Settings{"enable_sdrop=False", "capacity_factor=1.25"},
        Settings{"use_gating_sigmoid=True", "balance_via_topk_bias=True", "shared_expert_num=2",
                 "norm_topk_prob=False"},
        Settings{"aux_loss_types=[expert, seq_aux_loss]", "aux_loss_factors=[0.1, 0.2]"},
        Settings{"aux_loss_factor=0.05", "moe_layer_freq=[0, 1, 1, 1]", "capacity_factor=-1"},
        Settings{"topk_method=group_limited_greedy", "n_group=4", "topk_group=2",
                 "moe_router_pre_softmax=True", "parallel_config.expert_parallel=2",
                 "expert_model_parallel=2"}}) {
    AllConfig config = with_experts(settings);
    const std::string text = resolved_yaml(config);
    const AllConfig again = init_configs_from_text(text, "config.yaml");
    EXPECT_TRUE(again.same_values(config)) << text << "\n---\n" << resolved_yaml(again);
    const AllConfig before = config;
    resolve(config);
    EXPECT_TRUE(config.same_values(before)) << text << "\n---\n" << resolved_yaml(config);
  }
}

TEST(MoEConfig, InCppAndFromACommandLine) {
  AllConfig config = with_experts();
  config.moe_config.compatibility.enable_sdrop = true;
  config.moe_config.moe_expert_capacity_factor = 2;
  resolve(config);
  EXPECT_EQ(config.model_config.moe.moe_token_drop_policy, "position");
  EXPECT_EQ(config.model_config.moe.moe_expert_capacity_factor, 2.0);
  const AllConfig flat = init_configs_from_args({"--vocab-size",
                                                 "32",
                                                 "--num-layers",
                                                 "2",
                                                 "--num-attention-heads",
                                                 "4",
                                                 "--hidden-size",
                                                 "16",
                                                 "--ffn-hidden-size",
                                                 "24",
                                                 "--seq-length",
                                                 "8",
                                                 "--train-iters",
                                                 "2",
                                                 "--num-experts",
                                                 "4",
                                                 "--moe-router-topk",
                                                 "1",
                                                 "--moe-router-pre-softmax",
                                                 "--expert-model-parallel-size",
                                                 "2",
                                                 "--expert-tensor-parallel-size",
                                                 "1"});
  EXPECT_EQ(flat.model_config.moe.num_experts, 4);
  EXPECT_EQ(flat.parallel_config.expert_tensor_parallel_size, 1);
}

TEST(MoEConfig, UpcyclingTakesTheModelFromADenseOne) {
  const AllConfig config = with_experts({"upcycle_from=dense"});
  EXPECT_EQ(config.model_config.moe.upcycle_from, "dense");
  EXPECT_EQ(start_weights(config).path, "dense");
  EXPECT_TRUE(start_weights(config).dense);
  EXPECT_THAT(config.notes, IsEmpty());
  EXPECT_THAT(with_experts({"training_config.resume_training=True", "upcycle_from=dense"})
                  .training_config.load_checkpoint,
              IsEmpty());
}

TEST(MoEConfig, UpcyclingWithGatesThatDoNotAddUpToOne) {
  const auto notes = [](const Settings& settings) {
    Settings all = {"upcycle_from=dense"};
    all.insert(all.end(), settings.begin(), settings.end());
    return with_experts(all).notes;
  };
  const auto said = ElementsAre(Says("than the dense model"));
  EXPECT_THAT(notes({"moe_router_topk_scaling_factor=2"}), said);
  EXPECT_THAT(notes({"moe_router_pre_softmax=True"}), said);
  EXPECT_THAT(notes({"norm_topk_prob=False"}), said);
  EXPECT_THAT(notes({"moe_router_score_function=sigmoid", "moe_router_topk=1"}), said);
  EXPECT_THAT(notes({"moe_router_score_function=sigmoid"}), IsEmpty());
  EXPECT_THAT(notes({"moe_router_pre_softmax=True", "norm_topk_prob=True"}), IsEmpty());
}

// A run that goes on elsewhere has the weights of that one.
TEST(MoEConfig, UpcyclingOfARunThatGoesOn) {
  const AllConfig config =
      with_experts({"upcycle_from=dense", "training_config.load_checkpoint=run",
                    "training_config.resume_training=True"});
  EXPECT_EQ(start_weights(config).path, "run");
  EXPECT_FALSE(start_weights(config).dense);
}

TEST(MoEConfig, ForcedBalanceIsNoted) {
  const AllConfig config = with_experts({"moe_router_force_load_balancing=True"});
  EXPECT_TRUE(config.model_config.moe.moe_router_force_load_balancing);
  EXPECT_THAT(config.notes, ElementsAre(AllOf(HasSubstr("moe_router_force_load_balancing"),
                                              HasSubstr("does not learn to route"))));
}

// Wrong files: place, what is wrong, and what helps.
struct MoECase {
  const char* name;
  std::string moe;  // from line 10
  std::vector<std::string> fragments;
  std::string more = {};
  Settings overrides = {};
};

void PrintTo(const MoECase& c, std::ostream* out) { *out << c.name; }

class BadMoEInput : public ::testing::TestWithParam<MoECase> {};

TEST_P(BadMoEInput, SaysWhereAndWhatHelps) {
  const MoECase& c = GetParam();
  const std::string message =
      message_of<ConfigError>([&] { load_moe(c.moe, c.more, c.overrides); });
  for (const std::string& fragment : c.fragments) {
    EXPECT_THAT(message, Says(fragment));
  }
}

const std::string kTwelve = "  num_experts: 12\n";

const std::vector<MoECase> kMoECases = {
    {"ExpertsByEp",
     kTwelve,
     {"f.yaml:10:16: moe_config.num_experts: 12 ... not divisible by ... "
      "expert_model_parallel_size 8",
      "set that to 4 or make this a multiple"},
     "parallel_config: {expert_model_parallel_size: 8}\n"},
    {"WidthByEtp",
     kTwelve + "  moe_ffn_hidden_size: 10\n",
     {"f.yaml:11:24: moe_config.moe_ffn_hidden_size: 10 ... not divisible by ... "
      "expert_tensor_parallel_size 4; ... parallel_config.expert_tensor_parallel_size ... 2"},
     "parallel_config: {expert_tensor_parallel_size: 4}\n"},
    {"WidthByTp",
     kTwelve + "  moe_ffn_hidden_size: 10\n",
     {"f.yaml:11:24", "tensor_model_parallel_size, ... is that of experts too",
      "set ... parallel_config.expert_tensor_parallel_size ... 2"},
     "parallel_config: {tensor_model_parallel_size: 4}\n"},
    {"DenseWidthByEtp",
     kTwelve,
     {"f.yaml:7:20: model_config.ffn_hidden_size: 24 ... not divisible by ... "
      "expert_tensor_parallel_size 5",
      "to 1, or another width"},
     "parallel_config: {expert_tensor_parallel_size: 5}\n"},
    {"SharedWidthByTp",
     kTwelve + "  moe_shared_expert_intermediate_size: 6\n",
     {"f.yaml:11:40", "6 ... not divisible by ... tensor_model_parallel_size 4",
      "make it a multiple"},
     "parallel_config: {tensor_model_parallel_size: 4}\n"},
    {"MoreChoicesThanExperts",
     kTwelve + "  moe_router_topk: 13\n",
     {"f.yaml:11:20: moe_config.moe_router_topk: is 13, more than num_experts 12; a token can go"}},
    {"OneChoiceWithoutAGradient",
     kTwelve + "  num_experts_per_tok: 1\n",
     {"f.yaml:11:24: moe_config.moe_router_topk: 1 ... softmax",
      "moe_router_pre_softmax: ... moe_router_score_function: ... sigmoid, or a ... "
      "moe_router_topk ... 1"}},
    {"SigmoidWithASoftmax",
     kTwelve + "  use_gating_sigmoid: True\n  moe_router_pre_softmax: True\n",
     {"f.yaml:12:27: moe_config.moe_router_pre_softmax", "leave this key out"}},
    {"ScoresInTwoKeys",
     kTwelve + "  use_gating_sigmoid: True\n  moe_router_score_function: softmax\n",
     {"f.yaml:11:23: moe_config.use_gating_sigmoid: means moe_router_score_function: sigmoid, but "
      "it is softmax; keep one"}},
    {"DropsInTwoKeys",
     kTwelve + "  enable_sdrop: False\n  moe_token_drop_policy: probs\n",
     {"f.yaml:11:17: moe_config.enable_sdrop: means moe_token_drop_policy: choice, but it is "
      "probs; keep one"}},
    {"GroupsThatDoNotDivide",
     kTwelve + "  topk_method: noaux_tc\n  n_group: 5\n  topk_group: 2\n",
     {"f.yaml:12:12: moe_config.moe_router_num_groups: 5 ... num_experts 12; ... have the same "
      "number"}},
    {"MoreGroupsThanThereAre",
     kTwelve + "  topk_method: noaux_tc\n  n_group: 3\n  topk_group: 4\n",
     {"f.yaml:13:15: moe_config.moe_router_group_topk: is 4 of 3 groups; lower it"}},
    {"GroupsTooSmallForTheChoice",
     kTwelve + "  topk_method: group_limited_greedy\n  n_group: 6\n  topk_group: 1\n"
               "  moe_router_topk: 3\n",
     {"f.yaml:13:15: moe_config.moe_router_group_topk: 1 ... 2 ... experts have fewer than ... "
      "moe_router_topk 3;"}},
    {"GroupsOfOne",
     kTwelve + "  topk_method: noaux_tc\n  n_group: 12\n  topk_group: 4\n",
     {"f.yaml:12:12", "two; lower it, or set ... topk_method: group_limited_greedy"}},
    {"MethodWithoutGroups",
     kTwelve + "  topk_method: noaux_tc\n  n_group: 3\n",
     {"f.yaml:11:16: moe_config.topk_method: noaux_tc ... moe_config.moe_router_group_topk; ... "
      "set it, or ... topk_method:"}},
    {"GroupsWithoutAMethod",
     kTwelve + "  n_group: 3\n",
     {"f.yaml:11:12: moe_config.moe_router_num_groups: is 3 ... topk_method greedy",
      "leave this key out"}},
    {"PaddingWithoutACapacity",
     kTwelve + "  moe_pad_expert_input_to_capacity: True\n",
     {"f.yaml:11:37: moe_config.moe_pad_expert_input_to_capacity: True needs a capacity",
      "moe_expert_capacity_factor, ... for example ... 1.25"}},
    {"PaddingToNone",
     kTwelve + "  capacity_factor: -1\n  moe_pad_expert_input_to_capacity: True\n",
     {"f.yaml:12:37"}},
    {"CallbackWithOtherExperts",
     kTwelve,
     {"f.yaml:13:17: callbacks.MoEDropRateCallback.expert_num: ... 8, ... moe_config.num_experts "
      "... 12; ... so, or leave it out"},
     "callbacks:\n  - type: MoEDropRateCallback\n    expert_num: 8\n"},
    {"CallbackWithAnotherCapacity",
     kTwelve,
     {"callbacks.MoEDropRateCallback.capacity_factor: is 1.5, but "
      "moe_config.moe_expert_capacity_factor is null; set it so"},
     "callbacks:\n  - type: MoEDropRateCallback\n    capacity_factor: 1.5\n"},
    {"CallbackThatIsOff",
     kTwelve + "  callback_moe_droprate: False\n",
     {"f.yaml:11:26: moe_config.callback_moe_droprate: ... MoEDropRateCallback ... f.yaml:13:11 "
      "... leave one of them out"},
     "callbacks:\n  - type: MoEDropRateCallback\n"},
    {"LayersThatAreNotThere",
     kTwelve + "  moe_layer_freq: [0, 1]\n",
     {"f.yaml:11:19: moe_config.moe_layer_freq: has 2 entries for 4 layers; give one 0 or 1"}},
    {"NoLayerAtAll",
     kTwelve + "  moe_layer_freq: [0, 0, 0, 0]\n",
     {"f.yaml:11:19", "no layer experts; set a ... 1"}},
    {"FrequencyZero",
     kTwelve + "  moe_layer_freq: 0\n",
     {"f.yaml:11:19", "must be one number f > 0", "one 0 or 1 per layer"}},
    {"DenseLayersInTwoKeys",
     kTwelve + "  first_k_dense_replace: 1\n  moe_layer_freq: 2\n",
     {"f.yaml:11:26: moe_config.first_k_dense_replace: is 1 beside moe_layer_freq [2]",
      "keep one of them"}},
    {"AllLayersDense",
     kTwelve + "  first_k_dense_replace: 4\n",
     {"f.yaml:11:26", "4 dense layers of 4 ... none with experts"}},
    {"DefaultOfOtherPrograms",
     kTwelve + "  first_k_dense_replace: True\n",
     {"f.yaml:11:26", "expected an integer, got the boolean True"}},
    {"PolicyThatIsNone",
     kTwelve + "  routing_policy: HashRouter\n",
     {"f.yaml:11:19", "unknown value 'HashRouter'", "TopkRouterV2"}},
    {"LossWithoutItsGroups",
     kTwelve + "  moe_router_load_balancing_type: device\n  moe_aux_loss_coeff: 0.1\n",
     {"f.yaml:11:35", "device needs ... moe_config.expert_group_size"}},
    {"LossWithOddGroups",
     kTwelve + "  aux_loss_types: [device]\n  aux_loss_factors: [0.1]\n  expert_group_size: 5\n",
     {"f.yaml:13:22: moe_config.expert_group_size: 5 ... groups do not divide ... num_experts 12"}},
    {"LossesWithoutWeights",
     kTwelve + "  aux_loss_types: [expert, device]\n  aux_loss_factors: [0.1]\n",
     {"f.yaml:11:19: moe_config.aux_loss_types: aux_loss_types ... 2 ... aux_loss_factors 1; ... "
      "loss needs one weight"}},
    {"LossesOfTheLayout",
     kTwelve + "  aux_loss_types: [expert, comm]\n  aux_loss_factors: [0.1, 0.1]\n",
     {"f.yaml:11:19", "depend on the layout", "expert_group_size groups"}},
    {"LossesTwice",
     kTwelve + "  aux_loss_types: [expert, aux_loss]\n  aux_loss_factors: [0.1, 0.1]\n",
     {"f.yaml:11:19", "aux_loss ... add up its weights"}},
    {"LossesThatAreNone",
     kTwelve + "  aux_loss_types: [experts]\n  aux_loss_factors: [0.1]\n",
     {"f.yaml:11:19", "unknown balance loss 'experts'; the nearest is 'expert'"}},
    {"LossesInTwoKeys",
     kTwelve + "  aux_loss_types: [expert]\n  aux_loss_factors: [0.1]\n"
               "  moe_router_load_balancing_type: seq_aux_loss\n",
     {"f.yaml:11:19", "given beside ... moe_router_load_balancing_type: seq_aux_loss;"}},
    {"LossFactorBesideAnother",
     kTwelve + "  aux_loss_factor: 0.05\n  moe_aux_loss_coeff: 0.01\n",
     {"f.yaml:11:20: moe_config.aux_loss_factor: means moe_aux_loss_coeff: 0.05, but it is 0.01; "
      "keep one"}},
    {"LossFactorOne",
     kTwelve + "  aux_loss_factor: 1.0\n",
     {"f.yaml:11:20", "must be in (0, 1), got 1.0"}},
    {"GateOfNothing",
     kTwelve + "  use_shared_expert_gating: True\n",
     {"f.yaml:11:29: moe_config.use_shared_expert_gating: ... no shared expert ... "
      "moe_shared_expert_intermediate_size"}},
    {"SharedInTwoKeys",
     kTwelve + "  shared_expert_num: 2\n  moe_shared_expert_intermediate_size: 24\n",
     {"f.yaml:11:22: moe_config.shared_expert_num: means moe_shared_expert_intermediate_size: 48, "
      "but it is 24; keep one"}},
    {"SharedTooMany",
     kTwelve + "  shared_expert_num: 2000000000\n",
     {"f.yaml:11:22", "is more than 2147483647; lower one of them"}},
    {"Jitter", kTwelve + "  moe_input_jitter_eps: 1\n", {"f.yaml:11:25", "must be in [0, 1)"}},
    {"TwoStarts",
     kTwelve + "  upcycle_from: dense\n",
     {"f.yaml:11:17: moe_config.upcycle_from: ... given beside ... training_config.load_checkpoint",
      "keep one of them"},
     "",
     {"training_config.load_checkpoint=other"}},
    {"CopiesOfAnotherWidth",
     kTwelve + "  moe_ffn_hidden_size: 8\n  upcycle_from: dense\n",
     {"f.yaml:11:24: moe_config.moe_ffn_hidden_size: ... 8, ... upcycle_from ... MLP ... "
      "ffn_hidden_size 24; ... leave this key out"}},
    {"ExpertsOfNone",
     "  upcycle_from: dense\n",
     {"f.yaml:10:17: moe_config.upcycle_from: ... num_experts ... 1; ... model as it is with ... "
      "training_config.load_checkpoint"}},
    {"SpellingsThatDisagree",
     kTwelve + "  expert_num: 8\n",
     {"f.yaml:11:3: moe_config.num_experts: ... 'num_experts' ... f.yaml:10:3 ... 'expert_num' ... "
      "different values"}},
    {"KeyOfAnotherSection",
     kTwelve,
     {"f.yaml:12:3: unknown key 'num_experts_chosen' in parallel_config; it belongs in "
      "moe_config"},
     "parallel_config:\n  num_experts_chosen: 2\n"},
};

INSTANTIATE_TEST_SUITE_P(All, BadMoEInput, ::testing::ValuesIn(kMoECases), [](const auto& info) {
  return std::string(info.param.name);
});

// One mistake in a number gives one message, not one for each rule that reads it.
TEST(MoEConfig, OneMistakeGivesOneMessage) {
  for (const char* value : {"0", "x", "-3"}) {
    try {
      load_moe(concat("  num_experts: ", value, "\n"), "parallel_config: {expert_parallel: 2}\n");
      FAIL() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.findings(), SizeIs(1)) << error.what();
    }
  }
}

}  // namespace
}  // namespace tapestry
