#include "diagnosis/accuracy/checklist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/checklist_data.h"
#include "diagnosis/accuracy/checklist_items.h"
#include "diagnosis/accuracy/template_text.h"
#include "parallel_core/data/indexed_dataset.h"
#include "parallel_core/data/step_dataset.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::accuracy {
namespace {

using config::Value;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr const char* kRun =
    "training_config:\n  training_iters: 20\n  seed: 7\n"
    "dataset_config:\n  batch_size: 2\n  micro_batch_num: 2\n"
    "model_config:\n  vocab_size: 260\n  num_layers: 2\n  hidden_size: 64\n  ffn_hidden_size: 96\n"
    "  num_attention_heads: 4\n  seq_length: 16\n  position_embedding_type: rope\n"
    "  normalization: RMSNorm\n  hidden_act: swiglu\n"
    "optimizer_config:\n  learning_rate: 1e-3\n  weight_decay: 0.1\n  lr_decay_style: cosine\n"
    "  lr_warmup_iters: 4\n  betas: [0.9, 0.95]\n  clip_grad: 1.0\n";

ChecklistSide side_with(const std::vector<std::string>& overrides, const char* file = "ours.yaml") {
  return side_of(init_configs_from_text(kRun, file, {.overrides = overrides}), file, {});
}

Finding row_of(const VerdictReport& report, const std::string& key) {
  for (const Finding& finding : report.findings) {
    if (finding["key"] == key) {
      return finding;
    }
  }
  ADD_FAILURE() << "no row " << key << "\n" << report_text(report);
  return {{"status", ""}, {"ours", nullptr}, {"other", nullptr}, {"advice", ""}};
}

std::string status_of(const VerdictReport& report, const std::string& key) {
  return row_of(report, key)["status"];
}

template <class Reader>
std::string refusal(Reader&& reader) {
  try {
    reader();
    return "none";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Checklist, TheSameConfigurationAgrees) {
  const VerdictReport report = run_checklist(side_with({}), side_with({}, "other.yaml"));
  EXPECT_EQ(report.outcome, Outcome::kAgrees) << report_text(report);
  EXPECT_EQ(report.verdict_name(), "agree");
  EXPECT_FALSE(report.first);
  for (const Finding& finding : report.findings) {
    EXPECT_EQ(finding["status"], "same") << finding;
    std::vector<std::string> keys;
    for (const auto& [key, value] : finding.items()) {
      keys.push_back(key);
    }
    EXPECT_THAT(keys, ::testing::ElementsAre("group", "key", "ours", "other", "status", "advice"));
  }
}

// Each item is found, and does what its row says.
struct Change {
  const char* key;
  std::vector<std::string> overrides;
  const char* status;
};

void PrintTo(const Change& change, std::ostream* out) { *out << change.key; }

class ChecklistChange : public ::testing::TestWithParam<Change> {};

TEST_P(ChecklistChange, IsFound) {
  const Change& change = GetParam();
  const VerdictReport report =
      run_checklist(side_with({}), side_with(change.overrides, "other.yaml"));
  EXPECT_EQ(status_of(report, change.key), change.status) << report_text(report);
  EXPECT_NE(row_of(report, change.key)["ours"], row_of(report, change.key)["other"]);
  EXPECT_NE(row_of(report, change.key)["advice"], "");
  EXPECT_EQ(report.exit_code(), std::string(change.status) == "differs" ? 1 : 0);
  EXPECT_EQ(report.stage.value_or(""), report.exit_code() == 1 ? "config" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Items,
    ChecklistChange,
    ::testing::ValuesIn(std::vector<Change>{
        {"model_config.num_layers", {"model_config.num_layers=3"}, "differs"},
        {"model_config.num_attention_heads", {"model_config.num_attention_heads=2"}, "differs"},
        {"model_config.num_query_groups",
         {"model_config.group_query_attention=True", "model_config.num_query_groups=2"},
         "differs"},
        {"model_config.ffn_hidden_size", {"model_config.ffn_hidden_size=128"}, "differs"},
        {"model_config.rotary_config.rotary_base",
         {"model_config.rotary_config.rotary_base=500000"},
         "differs"},
        {"model_config.rotary_config.rope_type",
         {"model_config.rotary_config.rope_type=llama3"},
         "differs"},
        {"attention_pattern", {"model_config.window_size=[7, 0]"}, "differs"},
        {"model_config.normalization", {"model_config.normalization=LayerNorm"}, "differs"},
        {"model_config.norm_epsilon", {"model_config.norm_epsilon=1e-6"}, "differs"},
        {"model_config.hidden_act", {"model_config.hidden_act=gelu"}, "differs"},
        {"model_config.qkv_has_bias", {"model_config.qkv_has_bias=False"}, "differs"},
        {"model_config.hidden_dropout", {"model_config.hidden_dropout=0.1"}, "differs"},
        {"model_config.use_fused_kernels", {"model_config.use_fused_kernels=False"}, "rounding"},
        {"optimizer_config.optimizer_type", {"optimizer_config.optimizer_type=Adam"}, "differs"},
        {"beta1", {"optimizer_config.betas=[0.8, 0.95]"}, "differs"},
        {"beta2", {"optimizer_config.betas=[0.9, 0.999]"}, "differs"},
        {"optimizer_config.eps", {"optimizer_config.eps=1e-6"}, "differs"},
        {"gradient_clipping", {"optimizer_config.clip_grad=0"}, "differs"},
        {"global_batch_size", {"dataset_config.batch_size=4"}, "differs"},
        {"micro_batches",
         {"dataset_config.batch_size=1", "dataset_config.micro_batch_num=4"},
         "rounding"},
        {"optimizer_config.weight_decay", {"optimizer_config.weight_decay=0.01"}, "differs"},
        {"optimizer_config.end_weight_decay",
         {"optimizer_config.end_weight_decay=0.2",
          "optimizer_config.weight_decay_incr_style=linear"},
         "differs"},
        {"learning_rate_by_step", {"optimizer_config.lr_warmup_iters=5"}, "differs"},
        {"training_config.calculate_per_token_loss",
         {"training_config.calculate_per_token_loss=True"},
         "differs"},
        {"training_config.seed", {"training_config.seed=8"}, "differs"},
        {"model_config.compute_dtype", {"model_config.compute_dtype=bfloat16"}, "differs"},
        {"softmax_dtype",
         {"model_config.compute_dtype=bfloat16", "model_config.attention_softmax_in_fp32=False",
          "model_config.softmax_compute_dtype=bfloat16"},
         "differs"},
        {"parallel_config.tensor_model_parallel_size",
         {"parallel_config.tensor_model_parallel_size=2"},
         "rounding"},
        {"moe_config.num_experts", {"moe_config.num_experts=4"}, "differs"},
    }));

TEST(Checklist, ThisProgramIsDeterministicWhateverTheKeySays) {
  const VerdictReport report = run_checklist(
      side_with({}), side_with({"parallel_config.deterministic_mode=True"}, "o.yaml"));
  EXPECT_EQ(status_of(report, "parallel_config.deterministic_mode"), "same");
  EXPECT_EQ(row_of(report, "parallel_config.deterministic_mode")["ours"], true);
}

TEST(Checklist, ACoefficientOfZeroIsNone) {
  const std::vector<std::string> experts = {"moe_config.num_experts=4"};
  const auto with = [&](const std::string& more) {
    return std::vector<std::string>{experts.front(), "moe_config." + more};
  };
  const VerdictReport none =
      run_checklist(side_with(experts), side_with(with("moe_z_loss_coeff=0"), "other.yaml"));
  EXPECT_EQ(status_of(none, "moe_config.moe_z_loss_coeff"), "same");
  const VerdictReport some =
      run_checklist(side_with(experts), side_with(with("moe_z_loss_coeff=0.001"), "other.yaml"));
  EXPECT_EQ(status_of(some, "moe_config.moe_z_loss_coeff"), "differs");
}

TEST(Checklist, WhatDiffersStandsFirstOnceForEachCauseAndMarked) {
  const VerdictReport report = run_checklist(
      side_with({}), side_with({"optimizer_config.weight_decay=0.01",
                                "optimizer_config.learning_rate=2e-3", "training_config.seed=8"},
                               "other.yaml"));
  std::vector<std::string> differing;
  for (size_t i = 0; i < report.findings.size(); ++i) {
    if (report.findings[i]["status"] == "differs") {
      EXPECT_EQ(differing.size(), i);
      differing.push_back(report.findings[i]["key"]);
    }
  }
  EXPECT_THAT(differing,
              ::testing::ElementsAre("optimizer_config.learning_rate",
                                     "optimizer_config.weight_decay", "training_config.seed"));
  EXPECT_EQ(report.first->step, 1);
  EXPECT_THAT(report_text(report), HasSubstr("\n! optimizer  optimizer_config.learning_rate"));
}

TEST(Checklist, DataParallelRanksOfTheSameBatchAreRounding) {
  const AllConfig config = init_configs_from_text(kRun, "ours.yaml");
  const AllConfig half = init_configs_from_text(
      kRun, "other.yaml", {.overrides = {"dataset_config.micro_batch_num=1"}});
  const VerdictReport report = run_checklist(
      side_of(config, "ours.yaml", {}), side_of(half, "other.yaml", {.data_parallel_size = 2}));
  EXPECT_EQ(status_of(report, "data_parallel_size"), "rounding");
  EXPECT_EQ(status_of(report, "global_batch_size"), "same");
  EXPECT_EQ(status_of(report, "learning_rate_by_step"), "same");
  EXPECT_EQ(report.exit_code(), 0) << report_text(report);
}

TEST(Checklist, NamesTheFirstStepWhoseLearningRateDiffers) {
  const VerdictReport report =
      run_checklist(side_with({}), side_with({"optimizer_config.min_lr=1e-4"}, "other.yaml"));
  EXPECT_EQ(report.first->tensor, "learning_rate_by_step");
  // The warm-up is the same; the cosine begins behind it.
  EXPECT_EQ(report.first->step, 6);
  EXPECT_GT(*report.first->distance, 0);
  EXPECT_THAT(row_of(report, "learning_rate_by_step")["ours"].get<std::string>(),
              HasSubstr("at step 6"));
  EXPECT_EQ(report.charts.size(), 1U);
}

TEST(Checklist, WhereWeightsAndStepsAreGivenTheSeedMovesNothing) {
  const auto ours = side_with(
      {"training_config.load_checkpoint=weights.safetensors", "dataset_config.step_data_dir=data"});
  const VerdictReport report =
      run_checklist(ours, side_with({"training_config.seed=8"}, "other.yaml"));
  EXPECT_EQ(status_of(report, "training_config.seed"), "rounding");
}

TEST(Checklist, DropoutOnBothSidesIsRemarkedOn) {
  const std::vector<std::string> dropout = {"model_config.hidden_dropout=0.1"};
  const VerdictReport report = run_checklist(side_with(dropout), side_with(dropout, "other.yaml"));
  EXPECT_EQ(status_of(report, "model_config.hidden_dropout"), "same");
  EXPECT_THAT(row_of(report, "model_config.hidden_dropout")["advice"].get<std::string>(),
              Says("0 ... on both sides"));
}

TEST(Checklist, EveryItemHasAValueAndAnAdvice) {
  const ChecklistSide side = side_with({});
  for (const ChecklistItem& item : checklist_items()) {
    EXPECT_TRUE(side.values.contains(std::string(item.key))) << item.key;
    EXPECT_FALSE(item.advice.empty()) << item.key;
  }
}

// ---- Other programs.

constexpr const char* kScript =
    "#!/bin/bash\n"
    "ARGS=\"\n"
    "  --num-layers 2 --hidden-size 64 --num-attention-heads 4 --ffn-hidden-size 96 \\\n"
    "  --seq-length 16 --swiglu --disable-bias-linear --normalization RMSNorm\n"
    "  --position-embedding-type rope --untie-embeddings-and-output-weights\n"
    "\"\n"
    "TRAIN=( --micro-batch-size=2 --global-batch-size 4 --train-iters 20 # --lr 9\n"
    "  --lr 1e-3 --lr-decay-style cosine --lr-warmup-iters 4 --weight-decay 0.1 --seed 7\n"
    "  --adam-beta2 0.95 --hidden-dropout 0 --attention-dropout 0 --vocab-size 200 )\n"
    "torchrun pretrain_gpt.py $ARGS ${TRAIN[@]}\n";

TEST(Checklist, ReadsArgumentsOfMegatron) {
  const auto ours = side_with(
      {"model_config.qkv_has_bias=False", "model_config.out_proj_has_bias=False",
       "model_config.mlp_has_bias=False", "model_config.vocab_size=256",
       "model_config.init_method_std=0.02", "model_config.untie_embeddings_and_output_weights=True",
       "optimizer_config.lr_warmup_init=0"});  // Megatron's first update is none
  const ChecklistSide other = read_megatron_arguments(kScript, "train.sh");
  EXPECT_EQ(other.values.at("model_config.vocab_size"), Value(int64_t{256}));
  const VerdictReport report = run_checklist(ours, other);
  // Its softmax is in the compute dtype, which is float32 here, and its optimizer decays alike.
  EXPECT_EQ(report.exit_code(), 0) << report_text(report);
  EXPECT_EQ(status_of(report, "learning_rate_by_step"), "same");
  EXPECT_EQ(status_of(report, "weight_decay of layers.*.attention_norm.weight"), "same");
  EXPECT_EQ(status_of(report, "model_config.layernorm_compute_dtype"), "unknown");
  EXPECT_EQ(status_of(report, "data_parallel_size"), "unknown");
}

TEST(Checklist, MegatronsDefaultsAreItsOwn) {
  const ChecklistSide side =
      read_megatron_arguments("--num-layers 2 --hidden-size 64 --bf16", "args.txt");
  EXPECT_EQ(side.values.at("model_config.hidden_dropout"), Value(0.1));
  EXPECT_EQ(side.values.at("beta2"), Value(0.999));
  EXPECT_EQ(side.values.at("model_config.hidden_act"), Value(std::string("fast_gelu")));
  EXPECT_EQ(side.values.at("model_config.ffn_hidden_size"), Value(int64_t{256}));
  EXPECT_EQ(side.values.at("gradient_dtype"), Value(std::string("float32")));
  EXPECT_FALSE(side.learning_rate);
  const ChecklistSide gated =
      read_megatron_arguments("--num-layers 2 --hidden-size 768 --swiglu", "args.txt");
  EXPECT_EQ(gated.values.at("model_config.ffn_hidden_size"), Value(int64_t{2048}));
}

TEST(Checklist, MegatronsScaledRotationHasConstants) {
  const std::string words = "--num-layers 2 --position-embedding-type rope";
  const ChecklistSide plain = read_megatron_arguments(words, "args.txt");
  const ChecklistSide scaled =
      read_megatron_arguments(words + " --use-rope-scaling --rope-scaling-factor 32", "args.txt");
  const std::string of = "model_config.rotary_config.";
  EXPECT_EQ(plain.values.at(of + "rope_type"), Value(std::string("default")));
  EXPECT_EQ(scaled.values.at(of + "rope_type"), Value(std::string("llama3")));
  EXPECT_EQ(scaled.values.at(of + "rope_scaling_factor"), Value(32.0));
  EXPECT_EQ(scaled.values.at(of + "high_freq_factor"), Value(4.0));
  EXPECT_EQ(scaled.values.at(of + "original_max_position_embeddings"), Value(int64_t{8192}));
}

TEST(Checklist, MegatronMayDecayNormsOfQueriesAndKeys) {
  const ChecklistSide side = read_megatron_arguments(
      "--num-layers 2 --qk-layernorm --no-weight-decay-cond-type apply_wd_to_qk_layernorm",
      "args.txt");
  EXPECT_EQ(weight_decay_of(side, {"layers.*.attention.{q,k}_norm.weight", true, true}), 0.01);
  EXPECT_EQ(weight_decay_of(side, {"final_norm.weight", true}), 0);
  const ChecklistSide other =
      read_megatron_arguments("--num-layers 2 --no-weight-decay-cond-type of_my_own", "args.txt");
  EXPECT_FALSE(weight_decay_of(other, {"final_norm.weight", true}));
}

TEST(Checklist, MegatronsJsonSaysTheSame) {
  const ChecklistSide side = read_megatron_arguments(
      R"({"num_layers": 2, "hidden_size": 64, "swiglu": true, "add_bias_linear": false,
          "lr": 0.001, "train_iters": 10, "global_batch_size": 4, "kv_channels": null})",
      "args.json");
  EXPECT_EQ(side.values.at("model_config.hidden_act"), Value(std::string("swiglu")));
  EXPECT_EQ(side.values.at("model_config.mlp_has_bias"), Value(false));
  EXPECT_NEAR(side.learning_rate(1), 1e-3, 1e-12);
  EXPECT_NEAR(side.learning_rate(6), 5e-4, 1e-12);
}

TEST(Checklist, RefusesWrongArgumentsOfMegatron) {
  const auto message = [](const std::string& text) {
    return refusal([&] { read_megatron_arguments(text, "args.txt"); });
  };
  EXPECT_THAT(message("--num-layers two"),
              HasSubstr("args.txt: num_layers is 'two'; expected a number"));
  EXPECT_THAT(message("--num-layers 2.5"), HasSubstr("expected a whole number"));
  EXPECT_THAT(message("--num-layers 3e9"), HasSubstr("a whole number of at most 2.14748e+09"));
  EXPECT_THAT(message("--lr $LR"), Says("args.txt: lr is '$LR'; ... variable"));
  EXPECT_THAT(message("--lr --bf16"), Says("--lr: ... missing behind it"));
  EXPECT_THAT(message("--num-layers"), HasSubstr("a value is missing"));
  EXPECT_THAT(message("--bf16 --fp16"), Says("fp16 ... bf16 ... both given; keep one"));
  EXPECT_THAT(message("{\"swiglu\": 3}"), Says("'3'; ... expected true or false"));
  EXPECT_THAT(message("--num-layers 2 --moe-layer-freq 0"), Says("expected a number above ... 0"));
  EXPECT_THAT(message("--lr 1 --train-iters 9 --lr-decay-style steep"), HasSubstr("args.txt: "));
  EXPECT_THAT(message("--global-batch-size 3 --micro-batch-size 2 --data-parallel-size 1"),
              HasSubstr("no multiple"));
}

constexpr const char* kStaticRun =
    "seed: 42\n"
    "runner_config:\n  batch_size: 2\n  gradient_accumulation_steps: 2\n"
    "optimizer:\n  type: AdamW\n  betas: [0.9, 0.95]\n  eps: 1.e-8\n  weight_decay: 0.1\n"
    "lr_schedule:\n  type: CosineWithWarmUpLR\n  learning_rate: 1.e-3\n  lr_end: 1.e-4\n"
    "  warmup_steps: 4\n  total_steps: 20\n"
    "runner_wrapper:\n  type: MFTrainOneStepCell\n  use_clip_grad: True\n"
    "parallel_config:\n  data_parallel: 2\n  model_parallel: 1\n"
    "model:\n  model_config:\n    type: LlamaConfig\n    num_layers: 2\n    hidden_size: 64\n"
    "    num_heads: 4\n    vocab_size: 260\n    seq_length: 16\n    multiple_of: 32\n"
    "    rms_norm_eps: 1.e-5\n    compute_dtype: \"bfloat16\"\n    eos_token_id: 2\n";

TEST(Checklist, ReadsStaticConfigurations) {
  EXPECT_TRUE(looks_like_static_yaml(kStaticRun));
  EXPECT_FALSE(looks_like_static_yaml(kRun));
  const ChecklistSide side = read_static_yaml(kStaticRun, "static.yaml");
  // 4 * 64 * 2 / 3 = 170, in steps of 32.
  EXPECT_EQ(side.values.at("model_config.ffn_hidden_size"), Value(int64_t{192}));
  EXPECT_EQ(side.values.at("model_config.num_query_groups"), Value(int64_t{4}));
  EXPECT_EQ(side.values.at("global_batch_size"), Value(int64_t{8}));
  EXPECT_EQ(side.values.at("gradient_clipping"), Value(1.0));
  EXPECT_EQ(side.values.at("residual_dtype"), Value(std::string("bfloat16")));
  EXPECT_THAT(side.token_ids.eos, ::testing::ElementsAre(2));
  EXPECT_EQ(side.learning_rate(1), 0);
  EXPECT_NEAR(side.learning_rate(3), 5e-4, 1e-12);
  EXPECT_NEAR(side.learning_rate(5), 1e-3, 1e-12);
  EXPECT_NEAR(side.learning_rate(13), 5.5e-4, 1e-12);
  EXPECT_NEAR(side.learning_rate(21), 1e-4, 1e-12);
  const VerdictReport report = run_checklist(side_with({}), side);
  EXPECT_EQ(status_of(report, "model_config.num_layers"), "same");
  EXPECT_EQ(status_of(report, "model_config.compute_dtype"), "differs");
  EXPECT_EQ(status_of(report, "eos_id"), "unknown");
}

TEST(Checklist, ReadsNamesOfTheNewerStaticModels) {
  const ChecklistSide side = read_static_yaml(
      "model:\n  model_config:\n    num_hidden_layers: 3\n    hidden_size: 64\n"
      "    num_attention_heads: 4\n    num_key_value_heads: 2\n    intermediate_size: 100\n"
      "    hidden_act: silu\n    gated_linear_unit: True\n    normalization: RMSNorm\n"
      "    tie_word_embeddings: False\n    param_init_type: float32\n    embedding_init_type: "
      "bfloat16\n",
      "static.yaml");
  EXPECT_EQ(side.values.at("model_config.num_layers"), Value(int64_t{3}));
  EXPECT_EQ(side.values.at("model_config.num_query_groups"), Value(int64_t{2}));
  EXPECT_EQ(side.values.at("model_config.ffn_hidden_size"), Value(int64_t{100}));
  EXPECT_EQ(side.values.at("model_config.hidden_act"), Value(std::string("swiglu")));
  EXPECT_EQ(side.values.at("model_config.untie_embeddings_and_output_weights"), Value(true));
  EXPECT_EQ(side.values.at("embedding_dtype"), Value(std::string("bfloat16")));
  EXPECT_FALSE(side.values.contains("model_config.position_embedding_type"));
  EXPECT_FALSE(side.learning_rate);
}

TEST(Checklist, ReadsRoutersAndSharedExpertsOfStaticConfigurations) {
  const std::string moe =
      "moe_config:\n  expert_num: 4\n  num_experts_chosen: 2\n  routing_policy: TopkRouterV1\n"
      "  use_fused_ops_topkrouter: False\n  shared_expert_num: 2\n";
  const ChecklistSide side =
      read_static_yaml(kStaticRun + moe + "  moe_intermediate_size: 48\n", "static.yaml");
  const std::string shared = "moe_config.moe_shared_expert_intermediate_size";
  EXPECT_EQ(side.values.at(shared), Value(int64_t{96}));
  const ChecklistSide ours =
      side_with({"moe_config.num_experts=4", "moe_config.moe_router_topk=2",
                 "moe_config.moe_ffn_hidden_size=48", "moe_config.shared_expert_num=2"});
  const VerdictReport report = run_checklist(ours, side);
  EXPECT_EQ(status_of(report, shared), "same");
  EXPECT_EQ(status_of(report, "routing_policy"), "differs");
  EXPECT_EQ(row_of(report, "routing_policy")["other"], "TopkRouterV1");
  EXPECT_EQ(status_of(report, "use_fused_ops_topkrouter"), "rounding");
  // As wide as dense layers, where nothing else is said; none at all.
  EXPECT_EQ(read_static_yaml(kStaticRun + moe, "static.yaml").values.at(shared),
            Value(int64_t{2 * 192}));
  std::string none = kStaticRun + moe;
  none.replace(none.find("shared_expert_num: 2"), 20, "shared_expert_num: 0");
  EXPECT_EQ(read_static_yaml(none, "static.yaml").values.at(shared), Value(std::string("none")));
  none.replace(none.find("shared_expert_num: 0"), 20, "shared_expert_num: -1");
  EXPECT_THAT(refusal([&] { read_static_yaml(none, "static.yaml"); }),
              Says("shared_expert_num: ... -1; ... from ... 0"));
}

TEST(Checklist, TemplatesAndVersions) {
  const data::TempDir dir;
  const std::string hf = R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 260,
      "transformers_version": "4.51.3"})";
  dir.write("model/config.json", hf);
  dir.write("model/tokenizer_config.json", R"({"chat_template": "{{ messages[0] }}"})");
  dir.write("same.jinja", "{{ messages[0] }}");
  dir.write("other.jinja", "{{ messages[1] }}");
  const auto report_with = [&](const std::string& file) {
    const AllConfig config =
        init_configs_from_text(kRun, "ours.yaml",
                               {.overrides = {"dataset_config.chat_template=" + dir.file(file),
                                              "dataset_config.sft_data_path=examples.jsonl"}});
    return run_checklist(side_of(config, "ours.yaml", {.program = "Tapestry 1"}),
                         read_other_side(dir.file("model"), {}));
  };
  const VerdictReport same = report_with("same.jinja");
  EXPECT_EQ(status_of(same, "chat_template"), "same");
  EXPECT_EQ(row_of(same, "program_version")["ours"], "Tapestry 1");
  EXPECT_EQ(row_of(same, "program_version")["other"], "transformers 4.51.3");
  EXPECT_EQ(status_of(same, "program_version"), "rounding");
  EXPECT_EQ(status_of(report_with("other.jinja"), "chat_template"), "differs");
  // A static configuration has it below its tokenizer.
  EXPECT_EQ(read_static_yaml(std::string(kStaticRun) +
                                 "processor:\n  tokenizer:\n    chat_template: 'a {{ b }}'\n",
                             "static.yaml")
                .values.at("chat_template"),
            Value(template_mark("a {{ b }}")));
}

TEST(Checklist, RefusesWrongStaticConfigurations) {
  const auto message = [](std::string text, const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
    return refusal([&] { read_static_yaml(text, "static.yaml"); });
  };
  EXPECT_THAT(
      message(kStaticRun, "hidden_size: 64", "hidden_size: wide"),
      Says("static.yaml:26:18: model.model_config.hidden_size: ... expected a whole number"));
  EXPECT_THAT(message(kStaticRun, "betas: [0.9, 0.95]", "betas: [0.9]"),
              Says("optimizer.betas: ... list of two numbers"));
  EXPECT_THAT(message(kStaticRun, "learning_rate: 1.e-3", "learning_rate: [1]"),
              Says("learning_rate: ... expected one value"));
  EXPECT_THAT(message(kStaticRun, "multiple_of: 32", "multiple_of: 0"),
              Says("expected a number above ... 0"));
  EXPECT_THAT(message(kStaticRun, "betas: [0.9", "betas: {0.9"), HasSubstr("static.yaml:"));
  EXPECT_THAT(message(kStaticRun, "num_heads: 4",
                      "n_kv_heads: 2\n    head_dim: 3000000000\n    num_heads: 4"),
              Says("head_dim: ... 3000000000; ... expected a number from ... -1 ... 2147483647"));
  EXPECT_THAT(message(kStaticRun, "data_parallel: 2", "data_parallel: 0"),
              Says("data_parallel ... together are ... 0"));
  EXPECT_THAT(message(kStaticRun, "multiple_of: 32", "multiple_of: 32\n    ffn_dim_multiplier: -2"),
              Says("ffn_dim_multiplier: ... -2; ... expected a number above ... 0"));
}

// ---- Recognition by content.

TEST(Checklist, RecognisesWhatItIsGiven) {
  const data::TempDir dir;
  const auto kind = [&](const std::string& name, const std::string& text) {
    return read_other_side(dir.write(name, text), {}).kind;
  };
  EXPECT_EQ(kind("a.yaml", kRun), SideKind::kConfiguration);
  EXPECT_EQ(kind("a.txt", kRun), SideKind::kConfiguration);
  EXPECT_EQ(kind("b.yaml", kStaticRun), SideKind::kStatic);
  EXPECT_EQ(kind("c.sh", kScript), SideKind::kMegatron);
  EXPECT_EQ(kind("d.json", R"({"num_layers": 2, "lr": 1e-3})"), SideKind::kMegatron);
  const std::string hf = R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 260, "eos_token_id": [2, 3]})";
  EXPECT_EQ(kind("model/config.json", hf), SideKind::kHuggingFace);
  const ChecklistSide folder = read_other_side(dir.file("model"), {});
  EXPECT_EQ(folder.kind, SideKind::kHuggingFace);
  EXPECT_EQ(folder.values.at("model_config.num_layers"), Value(int64_t{2}));
  EXPECT_THAT(folder.token_ids.eos, ::testing::ElementsAre(2, 3));
}

TEST(Checklist, ReadsAStoredReferenceRun) {
  const std::string folder = TAPESTRY_SOURCE_DIR "/tests/data/golden_models/llama_tiny";
  const ChecklistSide side = read_other_side(folder, {});
  EXPECT_EQ(side.kind, SideKind::kReference);
  EXPECT_TRUE(side.learning_rate);
  EXPECT_FALSE(side.values.contains("model_config.use_fused_kernels"));
  ASSERT_TRUE(side.step_data);
  EXPECT_EQ(look_at_steps(*side.step_data).labels.text(), "by one");
}

TEST(Checklist, RefusesAWrongReference) {
  const data::TempDir dir;
  const std::string good =
      read_all(TAPESTRY_SOURCE_DIR "/tests/data/golden_models/llama_tiny/config.json");
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    const std::string path = dir.write("config.json", text.replace(at, from.size(), to));
    return refusal([&] { read_other_side(path, {}); });
  };
  EXPECT_THAT(message("\"data_parallel_size\": ", "\"data_parallel_size\": -"),
              HasSubstr("config.json: data_parallel_size is -"));
  EXPECT_THAT(message("\"num_layers\"", "\"number_of_layers\""), HasSubstr("number_of_layers"));
}

TEST(Checklist, RefusesWhatItCannotRecognise) {
  const data::TempDir dir;
  const auto message = [&](const std::string& name, const std::string& text) {
    const std::string path = dir.write(name, text);
    return refusal([&] { read_other_side(path, {}); });
  };
  EXPECT_THAT(message("a.json", "{\"what\": 1}"), HasSubstr("is JSON, but neither"));
  EXPECT_THAT(message("a.json", "[1, 2]"), HasSubstr("is JSON, but neither"));
  EXPECT_THAT(message("a.txt", "hello"), Says("a.txt: is none of ... YAML"));
  EXPECT_THAT(message("empty.txt", ""), HasSubstr("is none of"));
  EXPECT_THAT(message("a.yaml", "model_config:\n  num_layer: 2\n"), HasSubstr("num_layer"));
  EXPECT_THAT(refusal([&] { read_other_side(dir.file("nothing"), {}); }),
              Says("nothing: ... configuration file"));
  dir.write("folder/readme", "");
  EXPECT_THAT(refusal([&] { read_other_side(dir.file("folder"), {}); }),
              Says("neither ... config.json ... config.yaml"));
}

// ---- Data.

class ChecklistData : public ::testing::Test {
 protected:
  // Two steps of rows that count; labels `shift` behind.
  std::string write_steps(const std::string& name, int64_t shift, int64_t highest = 259) {
    constexpr int64_t kRows = 4;
    constexpr int64_t kSeq = 16;
    for (int64_t step = 0; step < 2; ++step) {
      data::StepRows rows{.rows = kRows, .seq = kSeq};
      for (int64_t i = 0; i < kRows * kSeq; ++i) {
        rows.tokens.push_back((i * 7 + step) % 97);
        rows.labels.push_back(((i + shift) * 7 + step) % 97);
        rows.loss_mask.push_back(1);
      }
      rows.tokens.back() = highest;
      data::write_step(dir_.file(name), step, 0, rows);
    }
    return dir_.file(name);
  }
  VerdictReport checked(const std::string& steps) {
    return run_checklist(side_with({"dataset_config.step_data_dir=" + steps}),
                         side_with({}, "other.yaml"));
  }
  data::TempDir dir_;
};

TEST_F(ChecklistData, LabelsAreShiftedOnce) {
  EXPECT_EQ(status_of(checked(write_steps("once", 1)), "label_shift"), "same");
  const VerdictReport none = checked(write_steps("none", 0));
  EXPECT_EQ(status_of(none, "label_shift"), "differs");
  EXPECT_THAT(row_of(none, "label_shift")["ours"].get<std::string>(),
              Says("by nothing: ... tokens"));
  EXPECT_EQ(none.exit_code(), 1);
  EXPECT_THAT(row_of(checked(write_steps("twice", 2)), "label_shift")["ours"].get<std::string>(),
              HasSubstr("shifted twice"));
  EXPECT_THAT(row_of(checked(write_steps("wild", 5)), "label_shift")["ours"].get<std::string>(),
              HasSubstr("no shifted tokens"));
}

TEST_F(ChecklistData, IdsLieInTheVocabulary) {
  EXPECT_EQ(status_of(checked(write_steps("in", 1)), "token_ids"), "same");
  const VerdictReport out = checked(write_steps("out", 1, 260));
  EXPECT_EQ(status_of(out, "token_ids"), "differs");
  EXPECT_EQ(row_of(out, "token_ids")["ours"], "0 to 260");
}

TEST_F(ChecklistData, LooksAtIndexedData) {
  data::IndexedDatasetWriter writer(dir_.file("text"), data::TokenType::kUInt16);
  for (int document = 0; document < 40; ++document) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < 30; ++i) {
      tokens.push_back((document * 31 + i * 13) % 200);
    }
    tokens.push_back(256);
    writer.add_tokens(tokens);
    writer.end_sequence();
    writer.end_document();
  }
  writer.finish();
  const std::vector<std::string> data = {"dataset_config.data_path=" + dir_.file("text"),
                                         "dataset_config.eos_token_id=256",
                                         "dataset_config.split=\"100,0,0\""};
  ChecklistSide other = side_with({}, "other.yaml");
  other.token_ids.eos = {2};
  const VerdictReport report = run_checklist(side_with(data), other);
  EXPECT_EQ(status_of(report, "label_shift"), "same") << report_text(report);
  EXPECT_EQ(row_of(report, "token_ids")["ours"], "0 to 256");
  EXPECT_EQ(row_of(report, "documents_that_end_with_eos")["ours"], "40 of 40");
  EXPECT_EQ(status_of(report, "eos_id"), "differs");
  EXPECT_THAT(row_of(report, "eos_id")["advice"].get<std::string>(), HasSubstr("another id"));
}

TEST_F(ChecklistData, DataThatAreNotThereAreNoted) {
  const VerdictReport report = checked(dir_.file("nothing"));
  EXPECT_EQ(report.exit_code(), 0);
  EXPECT_THAT(report.lines, Contains(Says("were not looked at")));
}

}  // namespace
}  // namespace tapestry::accuracy
