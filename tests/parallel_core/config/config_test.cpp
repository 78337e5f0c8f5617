#include "parallel_core/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "autograd/tensor/error.h"
#include "parallel_core/config/show/render.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::string kModel =
    "model_config:\n  vocab_size: 100\n  num_layers: 2\n  num_attention_heads: 4\n"
    "  hidden_size: 64\n  ffn_hidden_size: 128\n  seq_length: 32\n";
const std::string kTraining = "training_config:\n  training_iters: 20\n";

AllConfig load(const std::string& text, std::vector<std::string> overrides = {}) {
  return init_configs_from_text(text, "f.yaml", {.overrides = std::move(overrides)});
}
AllConfig with(std::vector<std::string> overrides) {
  return load(kTraining + kModel, std::move(overrides));
}

TEST(Config, DefaultsAndDerivedValues) {
  const AllConfig config = load(kTraining + kModel);
  EXPECT_EQ(config.training_config.seed, 1234);
  EXPECT_EQ(config.model_config.kv_channels, 16);
  EXPECT_EQ(config.model_config.num_query_groups, 4);
  EXPECT_EQ(config.model_config.max_position_embeddings, 32);
  EXPECT_EQ(config.optimizer_config.start_weight_decay, 0.0);
  EXPECT_EQ(config.optimizer_config.lr_decay_style, "constant");
  EXPECT_FALSE(config.model_config.gated_linear_unit);
  EXPECT_FALSE(gradient_clipping(config).has_value());
  EXPECT_EQ(config.origins.at("model_config.kv_channels").text,
            "derived from hidden_size / num_attention_heads");
  EXPECT_EQ(config.origins.at("model_config.vocab_size").text, "f.yaml:4");
  EXPECT_EQ(config.origins.at("training_config.seed").text, "default");
  EXPECT_THAT(config.unsupported, IsEmpty());
  EXPECT_NO_THROW(require_supported(config));
}

TEST(Config, SpellingsOfScalars) {
  const auto config = with({"optimizer_config.learning_rate=1e-6", "training_config.seed=0",
                            "training_config.eval_interval=~", "training_config.log_interval=",
                            "model_config.qkv_has_bias=off", "model_config.mlp_has_bias=false",
                            "model_config.scaled_output_init=YES", "optimizer_config.eps=+1.E-5"});
  EXPECT_EQ(config.optimizer_config.learning_rate, 1e-6);
  EXPECT_EQ(config.training_config.seed, 0);
  EXPECT_FALSE(config.training_config.eval_interval);
  EXPECT_FALSE(config.training_config.log_interval);
  EXPECT_FALSE(config.model_config.qkv_has_bias);
  EXPECT_FALSE(config.model_config.mlp_has_bias);
  EXPECT_TRUE(config.model_config.scaled_output_init);
  EXPECT_EQ(config.optimizer_config.eps, 1e-5);
  EXPECT_EQ(with({"optimizer_config.learning_rate=1"}).optimizer_config.learning_rate, 1.0);
  EXPECT_EQ(with({"training_config.no_load_rng=null"}).training_config.no_load_rng, false);
}

TEST(Config, OverridesReplaceAndLastOneHolds) {
  const auto config = with({"model_config.num_layers=3", "model_config.num_layers=5",
                            "model_config.rotary_config.rotary_base=500000",
                            "training_config.grad_clip_kwargs.grad_clip_type=GradClipByValue",
                            "training_config.grad_clip_kwargs.clip_value=2"});
  EXPECT_EQ(config.model_config.num_layers, 5);
  EXPECT_EQ(config.model_config.rotary_config.rotary_base, 500000.0);
  EXPECT_EQ(gradient_clipping(config), (GradClipConfig{"GradClipByValue", 2.0}));
  EXPECT_EQ(config.origins.at("model_config.num_layers").text, "--set");
}

TEST(Config, AnOverriddenMappingReplacesTheWholeOfIt) {
  const std::string text =
      kTraining + "  grad_clip_kwargs: {grad_clip_type: ClipGlobalNorm, clip_value: 1}\n" + kModel;
  EXPECT_FALSE(
      load(text, {"training_config.grad_clip_kwargs=null"}).training_config.grad_clip_kwargs);
  EXPECT_EQ(load(text, {"training_config.grad_clip_kwargs.clip_value=3"})
                .training_config.grad_clip_kwargs,
            (GradClipConfig{"ClipGlobalNorm", 3.0}));
  EXPECT_THROW(load(text, {"training_config.grad_clip_kwargs={clip_value: 3}"}), ConfigError);
}

TEST(Config, AliasesOfKeysAndValues) {
  const auto config = with(
      {"model_config.add_qkv_bias=False", "model_config.rotary_base=7",
       "optimizer_config.optimizer_type=mint.AdamW", "model_config.hidden_act=fused_swiglu",
       "model_config.normalization=FusedRMSNorm", "model_config.position_embedding_type=absolute"});
  EXPECT_FALSE(config.model_config.qkv_has_bias);
  EXPECT_EQ(config.model_config.rotary_config.rotary_base, 7.0);
  EXPECT_EQ(config.optimizer_config.optimizer_type, "AdamW");
  EXPECT_EQ(config.model_config.hidden_act, "swiglu");
  EXPECT_TRUE(config.model_config.gated_linear_unit);
  EXPECT_EQ(config.model_config.normalization, "RMSNorm");
  EXPECT_EQ(config.model_config.position_embedding_type, "learned_absolute");
  EXPECT_THAT(config.notes, SizeIs(4));
  EXPECT_THAT(config.notes, ::testing::Contains(HasSubstr("'absolute' means learned_absolute")));
  EXPECT_EQ(with({"optimizer_config.optimizer_type=SpeedAdamW"}).optimizer_config.optimizer_type,
            "AdamW");
  for (const char* name : {"AdamWeightDecay", "AdamWZeRO", "experiment_adamw"}) {
    EXPECT_EQ(
        with({concat("optimizer_config.optimizer_type=", name)}).optimizer_config.optimizer_type,
        "AdamW");
  }
}

TEST(Config, DefaultsOfAnOptimizer) {
  const auto optimizer = [](const char* type, std::vector<std::string> more = {}) {
    more.push_back(concat("optimizer_config.optimizer_type=", type));
    return with(std::move(more)).optimizer_config;
  };
  EXPECT_THAT(optimizer("Lion").betas, ElementsAre(0.9, 0.99));
  EXPECT_THAT(optimizer("Lion", {"optimizer_config.beta1=0.8"}).betas, ElementsAre(0.8, 0.99));
  EXPECT_THAT(optimizer("CAME").betas, ElementsAre(0.9, 0.999));
  const auto muon = optimizer("Muon");
  EXPECT_THAT(muon.betas, ElementsAre(0.95, 0.95));
  EXPECT_EQ(muon.momentum, 0.95);
  EXPECT_TRUE(muon.nesterov);
  const auto given =
      optimizer("Muon", {"optimizer_config.adamw_betas=[0.9, 0.8]", "optimizer_config.momentum=0.5",
                         "optimizer_config.nesterov=False"});
  EXPECT_THAT(given.betas, ElementsAre(0.9, 0.8));
  EXPECT_EQ(given.momentum, 0.5);
  EXPECT_FALSE(given.nesterov);
}

TEST(Config, CoefficientsOfMuon) {
  const auto table = [](const std::string& text) {
    const AllConfig config =
        with({"optimizer_config.optimizer_type=Muon", "optimizer_config.ns_coefficients=" + text});
    const auto found = *config.optimizer_config.ns_coefficients;
    EXPECT_EQ(*load(resolved_yaml(config)).optimizer_config.ns_coefficients, found) << text;
    return found;
  };
  const FloatTable triple = {{3.5, -4, 2}};
  const FloatTable one = {{3.5, -4, 2, 6}};
  const FloatTable two = {{3.5, -4, 2, 8}, {2, -1.5, 0.5, 2}};
  EXPECT_EQ(table("[3.5, -4, 2]"), triple);
  EXPECT_EQ(table("[[3.5, -4, 2]]"), triple);
  EXPECT_EQ(table("[[[3.5, -4, 2], 6]]"), one);
  EXPECT_EQ(table("[[3.5, -4, 2, 6]]"), one);
  EXPECT_EQ(table("[3.5, -4, 2, 6]"), one);
  EXPECT_EQ(table("[[[3.5, -4, 2], 8], [[2, -1.5, 0.5], 2]]"), two);
}

TEST(Config, NamesOfParameters) {
  const AllConfig config =
      with({"optimizer_config.weight_decay=0.1", "optimizer_config.weight_decay_include=linear_qkv",
            "optimizer_config.weight_decay_exclude=['*embed*', norm]"});
  EXPECT_THAT(*config.optimizer_config.weight_decay_include, ElementsAre("linear_qkv"));
  EXPECT_THAT(*config.optimizer_config.weight_decay_exclude, ElementsAre("*embed*", "norm"));
  // No list and an empty one are different things.
  EXPECT_FALSE(with({}).optimizer_config.weight_decay_include);
  EXPECT_THAT(
      *with({"optimizer_config.weight_decay=0.1", "optimizer_config.weight_decay_include=[]"})
           .optimizer_config.weight_decay_include,
      IsEmpty());
}

TEST(Config, BiasesFollowAddBiasLinearUnlessGiven) {
  const auto config =
      with({"model_config.add_bias_linear=False", "model_config.qkv_has_bias=True"});
  EXPECT_TRUE(config.model_config.qkv_has_bias);
  EXPECT_FALSE(config.model_config.out_proj_has_bias);
  EXPECT_FALSE(config.model_config.mlp_has_bias);
}

TEST(Config, WindowAndPreTokensAreOneThing) {
  EXPECT_THAT(*with({"model_config.fa_config.pre_tokens=7"}).model_config.window_size,
              ElementsAre(7, 0));
  EXPECT_EQ(with({"model_config.window_size=[7, 0]", "model_config.fa_config={}"})
                .model_config.fa_config->pre_tokens,
            7);
  EXPECT_FALSE(with({"model_config.fa_config.pre_tokens=31"}).model_config.window_size);
  EXPECT_NO_THROW(with({"model_config.fa_config.pre_tokens=7", "model_config.window_size=[7, 0]"}));
  EXPECT_EQ(with({"model_config.fa_config.keep_prob=0.9"}).model_config.attention_dropout, 0.1);
}

TEST(Config, ReducedPrecisionSetsComputeTypeAlone) {
  const auto config = with({"training_config.bf16=True"});
  EXPECT_EQ(config.model_config.compute_dtype, kBFloat16);
  EXPECT_EQ(config.model_config.params_dtype, kFloat32);
  EXPECT_EQ(config.parallel_config.recv_dtype, kBFloat16);
  EXPECT_THAT(config.unsupported, IsEmpty());
  EXPECT_EQ(with({"training_config.fp16=True"}).model_config.compute_dtype, kFloat16);
}

TEST(Config, LaterFeaturesAreNamedWithReasonAndPlace) {
  const char* const kLater[] = {"training_config.profile_pcie=True",
                                "optimizer_config.zero_config={cpu_offload: True}"};
  for (const char* text : kLater) {
    const auto config = with({text});
    ASSERT_THAT(config.unsupported, SizeIs(1)) << text;
    EXPECT_THAT(config.unsupported[0], Says(std::string("--set ") + text));
    EXPECT_THAT(config.unsupported[0],
                ::testing::AnyOf(HasSubstr(" is not supported yet: "), HasSubstr(" is refused: ")));
  }
}

TEST(Config, FilesOfCheckpointsHaveAFormatAndNames) {
  const auto config = with({"training_config.ckpt_format=ckpt", "training_config.prefix=llama_8b"});
  EXPECT_EQ(config.training_config.ckpt_format, "ckpt");
  EXPECT_EQ(config.training_config.prefix, "llama_8b");
  EXPECT_THAT(config.unsupported, IsEmpty());
  // Names of safetensors are Hugging Face's.
  EXPECT_THAT(message_of<ConfigError>([] { with({"training_config.prefix=llama_8b"}); }),
              HasSubstr("set ckpt_format: ckpt"));
  for (const char* prefix : {"a/b", ".hidden", "\"\"", "a-training_state"}) {
    EXPECT_THAT(
        message_of<ConfigError>([&] {
          with({"training_config.ckpt_format=ckpt", concat("training_config.prefix=", prefix)});
        }),
        Says("beginning of a ... file's name"));
  }
  EXPECT_THAT(message_of<ConfigError>([] {
                with({"training_config.keep_checkpoint_per_n_minutes=5",
                      "training_config.keep_checkpoint_max=3"});
              }),
              Says("given beside ... keep_checkpoint_max"));
  EXPECT_EQ(with({"training_config.exception_save=True"}).unsupported.size(), 1U);
}

TEST(Config, ResumingIsASwitchOrAName) {
  const auto choice = [](const char* value) {
    return with({concat("training_config.resume_training=", value)})
        .training_config.resume_training;
  };
  EXPECT_EQ(choice("False"), (ResumeChoice{false, {}}));
  EXPECT_EQ(choice("True"), (ResumeChoice{true, {}}));
  EXPECT_EQ(choice("step_00000040"), (ResumeChoice{true, "step_00000040"}));
}

TEST(Config, IntervalsOfSaving) {
  const auto minutes = with({"training_config.save_interval_minutes=1.5"}).training_config;
  EXPECT_EQ(minutes.save_interval_seconds, 90.0);
  using Settings = std::vector<std::string>;
  for (const Settings& wrong :
       {Settings{"training_config.save_interval=5", "training_config.save_interval_seconds=5"},
        Settings{"training_config.save_interval_minutes=5",
                 "training_config.save_interval_seconds=5"},
        Settings{"training_config.best_metric_comparison=less"}}) {
    EXPECT_THAT(message_of<ValueError>([&] { with(wrong); }),
                ::testing::AnyOf(Says("one that is meant"), HasSubstr("needs ")));
  }
}

TEST(Config, AccumulationStepsMultiplyMicroBatches) {
  const auto config =
      with({"training_config.gradient_accumulation_steps=4", "dataset_config.micro_batch_num=3"});
  EXPECT_EQ(config.dataset_config.micro_batch_num, 12);
  EXPECT_FALSE(config.training_config.gradient_accumulation_steps);
  EXPECT_EQ(
      with({"training_config.gradient_accumulation_steps=null"}).dataset_config.micro_batch_num, 1);
  EXPECT_THAT(
      message_of<ValueError>([&] { with({"training_config.gradient_accumulation_steps=0"}); }),
      ::testing::AllOf(HasSubstr("gradient_accumulation_steps"), HasSubstr("got 0")));
  EXPECT_THAT(
      message_of<ValueError>([&] { with({"training_config.gradient_accumulation_steps=True"}); }),
      ::testing::AllOf(HasSubstr("gradient_accumulation_steps"), HasSubstr("integer")));
  EXPECT_THAT(message_of<ValueError>([&] {
                with({"training_config.gradient_accumulation_steps=2000000000",
                      "dataset_config.micro_batch_num=2"});
              }),
              HasSubstr("more than 2147483647 micro-batches"));
}

TEST(Config, ClippingInTwoKeys) {
  const auto clip = [](const std::vector<std::string>& settings) {
    return with(settings).optimizer_config.clip_grad;
  };
  const std::string use = "training_config.use_clip_grad=";
  EXPECT_EQ(clip({use + "True"}), 1.0);
  EXPECT_EQ(clip({use + "True", "training_config.max_grad_norm=0.5"}), 0.5);
  EXPECT_EQ(clip({use + "True", "optimizer_config.clip_grad=1.0"}), 1.0);
  EXPECT_EQ(clip({use + "False"}), 0.0);
  EXPECT_EQ(clip({"training_config.max_grad_norm=0.5"}), 0.0);
  const std::string kwargs =
      "training_config.grad_clip_kwargs={grad_clip_type: GradClipByValue, clip_value: 1.0}";
  using Settings = std::vector<std::string>;
  for (const Settings& wrong : {Settings{use + "True", "optimizer_config.clip_grad=2.0"},
                                Settings{use + "True", "optimizer_config.clip_grad=0"},
                                Settings{use + "False", "optimizer_config.clip_grad=2.0"},
                                Settings{use + "True", kwargs}, Settings{use + "False", kwargs}}) {
    EXPECT_THAT(message_of<ValueError>([&] { with(wrong); }),
                ::testing::AllOf(HasSubstr("use_clip_grad"), HasSubstr("keep ")));
  }
  // A command line takes a clip_grad of before back by 0, where it gives the other key, too.
  EXPECT_EQ(clip({"optimizer_config.clip_grad=2.0", kwargs, "optimizer_config.clip_grad=0"}), 0.0);
  EXPECT_THAT(message_of<ValueError>([&] {
                clip({kwargs, "optimizer_config.clip_grad=2.0"});
              }),
              HasSubstr("given beside training_config.grad_clip_kwargs"));
}

TEST(Config, RecordedStepsAreNotShuffled) {
  EXPECT_THAT(message_of<ValueError>([&] {
                with({"dataset_config.step_data_dir=x", "dataset_config.shuffle=True"});
              }),
              Says("shuffle ... True ... replayed in order"));
  for (const char* order : {"True", "False"}) {
    EXPECT_THAT(with({concat("dataset_config.shuffle=", order)}).unsupported, IsEmpty());
  }
}

TEST(Config, TwoSpellingsOfOneThing) {
  const auto alibi = with({"model_config.use_alibi_mask=True"}).model_config;
  EXPECT_EQ(alibi.position_embedding_type, "alibi");
  EXPECT_TRUE(with({"model_config.position_embedding_type=alibi"}).model_config.use_alibi_mask);
  EXPECT_TRUE(with({"model_config.use_eod_attn_mask_compression=True"})
                  .dataset_config.reset_attention_mask);
  EXPECT_EQ(
      with({"model_config.attn_mask_type=padding_causal"}).model_config.encoder_attn_mask_type,
      "causal");
  EXPECT_EQ(with({"model_config.init_method_type=he_normal"}).model_config.init_method.name,
            "he_normal");
  using Settings = std::vector<std::string>;
  for (const Settings& wrong :
       {Settings{"model_config.use_alibi_mask=True", "model_config.position_embedding_type=rope"},
        Settings{"model_config.use_alibi_mask=False", "model_config.position_embedding_type=alibi"},
        Settings{"model_config.use_eod_reset=True", "dataset_config.reset_attention_mask=False"}}) {
    EXPECT_THAT(message_of<ValueError>([&] { with(wrong); }), HasSubstr("keep one of them"));
  }
}

// Values that say what is done anyway.
TEST(Config, HarmlessKeysAreAccepted) {
  const auto config = with(
      {"model_config.bias_dropout_fusion=True", "model_config.masked_softmax_fusion=True",
       "model_config.clone_scatter_output_in_embedding=True",
       "model_config.flatten_labels_and_input_mask=False", "model_config.out_hidden_size=64",
       "model_config.embedding_init_dtype=float32", "model_config.use_attn_mask_compression=True",
       "model_config.fa_config={next_tokens: 2147483647, sparse_mode: 3, input_layout: TND}",
       "dataset_config.drop_remainder=False"});
  EXPECT_THAT(config.unsupported, IsEmpty());
}

TEST(Config, WhatCannotBeIsRefusedWithWhatToDo) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"model_config.out_hidden_size=7", "leave this key out"},
      {"model_config.embedding_init_dtype=bfloat16", "leave this key out"},
      {"model_config.bias_init=xavier_uniform", "expected normal"},
      {"model_config.fa_config={sparse_mode: 2, pre_tokens: 3}", "or set 4"}};
  for (const auto& [text, advice] : refused) {
    EXPECT_THAT(message_of<ValueError>([&, text = text] { with({text}); }), Says(advice)) << text;
  }
  const std::vector<std::pair<std::string, std::string>> never = {
      {"model_config.attn_mask_type=no_mask", "leave the key out"},
      {"model_config.fa_config.sparse_mode=1", "leave the key out"},
      {"model_config.use_ring_attention=True", "context_parallel_size ... is enough"},
      {"model_config.enable_flash_sp=True", "context_parallel_size ... is enough"},
      {"model_config.head_skip_weight_param_allocation=False",
       "untie_embeddings_and_output_weights"},
      {"model_config.fp8_format=hybrid", "compute_dtype: bfloat16"},
      {"model_config.attention_type=cross_attn", "use num_layers"},
      {"parallel_config.heterogeneous_pipeline=True", "num_layer_list ... and offset"},
      {"dataset_config.dataset_size=100", "train_samples"}};
  for (const auto& [text, advice] : never) {
    const auto config = with({text});
    ASSERT_THAT(config.unsupported, SizeIs(1)) << text;
    EXPECT_THAT(config.unsupported[0], Says(advice));
  }
}

TEST(Config, NeutralValuesOfLaterFeaturesAreAccepted) {
  const auto config =
      with({"parallel_config.recompute_config=null", "parallel_config.sequence_parallel=True",
            "parallel_config.virtual_pipeline_model_parallel_size=1",
            "parallel_config.num_layer_list=[2]", "training_config.use_distributed_optimizer=True",
            "model_config.use_flash_attention=True", "moe_config.moe_expert_capacity_factor=-1",
            "model_config.bias_init=0", "parallel_config.recompute_config.recompute=[0]"});
  EXPECT_THAT(config.unsupported, IsEmpty());
  EXPECT_TRUE(config.training_config.wrap_with_ddp);
  EXPECT_THAT(config.notes, ::testing::Contains(HasSubstr("sequence_parallel")));
}

TEST(Config, NewDataNeedARunThatIsGoneOnWith) {
  const std::string fresh = "training_config.new_dataset=True";
  EXPECT_TRUE(with({fresh}).training_config.new_dataset);
  EXPECT_THAT(with({fresh}).notes,
              ::testing::Contains(AllOf(HasSubstr("new_dataset"), HasSubstr("no effect"))));
  EXPECT_THAT(with({fresh, "training_config.resume_training=True"}).notes, IsEmpty());
}

TEST(Config, TheModelKnowsOfSequenceParallelismWhereItHasAnEffect) {
  const std::string tp = "parallel_config.tensor_model_parallel_size=2";
  const std::string sp = "parallel_config.sequence_parallel=True";
  EXPECT_THAT(with({tp, sp}).unsupported, IsEmpty());
  EXPECT_TRUE(with({tp, sp}).model_config.sequence_parallel);
  EXPECT_FALSE(with({tp}).model_config.sequence_parallel);
  EXPECT_FALSE(with({sp}).model_config.sequence_parallel);
}

TEST(Config, ModelSectionMayHaveAnotherName) {
  std::string text = kTraining + kModel;
  text.replace(text.find("model_config"), 12, "gpt_config");
  const AllConfig config = load(text, {"model_config.num_layers=3", "gpt_config.vocab_size=7"});
  EXPECT_EQ(config.model_section, "gpt_config");
  EXPECT_EQ(config.model_config.num_layers, 3);
  EXPECT_EQ(config.model_config.vocab_size, 7);
  text.replace(text.find("gpt_config"), 10, "my_config");
  EXPECT_THROW(load(text), ConfigError);
  EXPECT_EQ(
      init_configs_from_text(text, "f.yaml", {.model_type = "my_config"}).model_config.num_layers,
      2);
}

TEST(Config, RecomputeConfigAtTopLevel) {
  const auto config = load(kTraining + kModel + "recompute_config:\n  recompute: [1]\n");
  const RecomputeConfig& recompute = *config.parallel_config.recompute_config;
  EXPECT_EQ(config::to_yaml(recompute.recompute.value), "[1]");
  EXPECT_THAT(config.unsupported, IsEmpty());
}

TEST(Config, Blends) {
  EXPECT_THAT(*with({"dataset_config.data_path=a/b"}).dataset_config.data_path, ElementsAre("a/b"));
  EXPECT_THAT(*with({"dataset_config.data_path=[0.30, a, 0.7, b]"}).dataset_config.data_path,
              ElementsAre("0.30", "a", "0.7", "b"));
  for (const auto& [given, split] :
       {std::pair{"1", "1"}, std::pair{"90,10", "90,10"}, std::pair{"[969, 30, 1]", "969,30,1"},
        std::pair{"0.9", "0.9"}, std::pair{"'1,1'", "1,1"}}) {
    EXPECT_EQ(with({std::string("dataset_config.split=") + given}).dataset_config.split, split);
  }
  EXPECT_THAT(*with({"dataset_config.text=[a.txt, b c.txt]"}).dataset_config.text,
              ElementsAre("a.txt", "b c.txt"));
  EXPECT_THAT(*with({"dataset_config.data_path=[[0.3, a], [0.7, b]]"}).dataset_config.data_path,
              ElementsAre("0.3", "a", "0.7", "b"));
  EXPECT_THAT(*with({"dataset_config.data_path=[a, b]"}).dataset_config.data_path,
              ElementsAre("a", "b"));
}

TEST(Config, LengthOfARun) {
  EXPECT_EQ(total_training_iters(with({})), 20);
  const auto samples =
      with({"training_config.training_iters=0", "dataset_config.train_samples=25",
            "dataset_config.batch_size=2", "dataset_config.micro_batch_num=2",
            "optimizer_config.lr_warmup_samples=4", "optimizer_config.lr_decay_style=cosine"});
  EXPECT_EQ(global_batch_size(samples), 4);
  EXPECT_EQ(total_training_iters(samples), 6);
  EXPECT_EQ(total_training_iters(samples, 2), 3);
  EXPECT_EQ(
      total_training_iters(with({"training_config.training_iters=0", "training_config.epochs=2"})),
      0);
}

TEST(Config, ResolvedYamlReadsBackTheSame) {
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"training_config.bf16=True", "parallel_config.recv_dtype=float16"},
      {"training_config.use_distributed_optimizer=True", "training_config.bucket_size=5"},
      {"training_config.grad_clip_kwargs={grad_clip_type: ClipGlobalNorm, clip_value: 1}",
       "optimizer_config.learning_rate_scheduler_kwargs={decay_steps: 2000, warmup_steps: 200}"},
      {"model_config.fa_config.pre_tokens=7", "model_config.fa_config.keep_prob=0.7"},
      {"model_config.window_size=[3, 0]", "model_config.fa_config={}",
       "model_config.attention_dropout=0.1"},
      {"model_config.add_bias_linear=True", "model_config.qkv_has_bias=False"},
      {"model_config.group_query_attention=False", "model_config.num_query_groups=2"},
      {"optimizer_config.beta1=0.8", "optimizer_config.weight_decay=0.1",
       "optimizer_config.lr_decay_style=WSD", "optimizer_config.lr_wsd_decay_iters=5"},
      {"dataset_config.data_path=[0.30, 'a b: c # d', 1, \"q\\\"\\n\"]",
       "training_config.output_dir='12'"},
      {"lora_config.use_lora=True",
       "lora_config.target_cells=[{target_cells: [\"a.*\", b]}, {cell: ab, rank: 4, alpha: 0.5}]"},
      {"parallel_config.pipeline_model_parallel_size=2",
       "parallel_config.virtual_pipeline_model_parallel_size=2",
       "parallel_config.num_layer_list=[[1, 1], [1, 1]]", "model_config.num_layers=4",
       "parallel_config.recompute=[[1, 0], [0, 0]]"},
      {"parallel_config.recompute_config=True"},
      {"parallel_config.recompute_config={recompute: [True], select_recompute: {'a\\.b': [1], "
       "'.*\\.c': True}, "
       "select_comm_recompute: ['.*\\.norm'], mp_comm_recompute: False}"},
      {"recompute_config.recompute_layers=[0, 1]"},
      {"training_config.training_iters=0", "dataset_config.train_samples=40",
       "optimizer_config.lr_warmup_samples=3"},
      {"model_config.init_method=0.25", "moe_config.num_experts=4",
       "moe_config.moe_layer_freq=[0, 1]", "model_config.fp8_format=e4m3"}};
  for (const auto& overrides : cases) {
    const AllConfig config = with(overrides);
    const std::string text = resolved_yaml(config);
    AllConfig again;
    ASSERT_NO_THROW(again = load(text)) << text;
    EXPECT_TRUE(again.same_values(config)) << text << "\n---\n" << resolved_yaml(again);
    EXPECT_EQ(again.unsupported.size(), config.unsupported.size());
  }
}

std::vector<std::string> remarks_without_effect(const AllConfig& config) {
  std::vector<std::string> found;
  std::copy_if(config.notes.begin(), config.notes.end(), std::back_inserter(found),
               [](const std::string& note) { return note.find("no effect") != std::string::npos; });
  return found;
}

// A run's own config.yaml has every key; none of them is worth a remark, as the next one's reader
// has not written them.
TEST(Config, ResolvedYamlHasNothingWithoutEffect) {
  struct Row {
    std::vector<std::string> overrides;
    size_t remarks;  // of the file that the user wrote
  };
  const std::vector<Row> rows = {
      {{}, 0},
      {{"training_config.bf16=True"}, 0},
      {{"training_config.fp16=True", "training_config.loss_scale_value=1024",
        "training_config.loss_scale_factor=2", "training_config.loss_scale_window=10"},
       0},
      {{"lora_config.use_lora=True", "lora_config.lora_rank=4"}, 0},
      {{"lora_config.lora_rank=16", "lora_config.use_dora=True"}, 2},
      {{"lora_config.lora_rank=8", "lora_config.use_dora=False"}, 0},  // the defaults
      {{"tensorboard.log_timers_to_tensorboard=True", "tensorboard.histogram_interval=5"}, 2},
      {{"tensorboard.tensorboard_dir=board"}, 0},
      {{"parallel_config.sequence_parallel=True"}, 1},
      {{"parallel_config.tensor_model_parallel_size=2", "parallel_config.sequence_parallel=True"},
       0},
      {{"parallel_config.expert_model_parallel_size=2", "moe_config.moe_router_topk=1"}, 2},
      {{"moe_config.num_experts=4", "moe_config.moe_router_topk=2"}, 0},
      {{"moe_config.num_experts=4", "moe_config.moe_aux_loss_coeff=0.1",
        "moe_config.moe_router_load_balancing_type=none",
        "moe_config.moe_token_drop_policy=position", "moe_config.expert_group_size=2",
        "moe_config.moe_shared_expert_overlap=True"},
       4},
      {{"moe_config.group_wise_a2a=True"}, 1},
      {{"model_config.rotary_config.rope_scaling_factor=4"}, 1},
      {{"model_config.rotary_config.rope_type=llama3"}, 0},
      {{"model_config.parallel_position_embedding=True",
        "model_config.position_embedding_type=rope"},
       1},
      {{"model_config.recompute_num_layers=2", "model_config.recompute_method=block"}, 2},
      {{"model_config.recompute_granularity=full", "model_config.recompute_method=block",
        "model_config.recompute_num_layers=1"},
       0},
      {{"model_config.recompute_granularity=full", "model_config.recompute_method=block",
        "model_config.recompute_num_layers=1", "parallel_config.recompute_config=True"},
       3},
      {{"model_config.distribute_saved_activations=True"}, 1},
      {{"parallel_config.recompute_config.parallel_optimizer_comm_recompute=True"}, 1},
      {{"training_config.max_grad_norm=1"}, 1},
      {{"training_config.use_clip_grad=True"}, 0},
      {{"training_config.new_dataset=True"}, 1},
      {{"training_config.keep_checkpoint_per_n_minutes=5"}, 0},
      {{"training_config.save_interval_minutes=5"}, 0},
      {{"training_config.autopsy=True", "training_config.loss_spike_threshold=3"}, 0},
      {{"optimizer_config.optimizer_type=SGD", "optimizer_config.betas=[0.8, 0.9]",
        "optimizer_config.eps=1e-6"},
       2},
      {{"optimizer_config.optimizer_type=Lion"}, 0},
      {{"optimizer_config.optimizer_type=Came"}, 0},
      {{"optimizer_config.optimizer_type=Adafactor"}, 0},
      {{"optimizer_config.optimizer_type=Muon"}, 0},
      {{"optimizer_config.optimizer_type=Muon", "optimizer_config.ns_steps=4",
        "optimizer_config.ns_coefficients=[[[3.0, -4.0, 2.0], 5]]"},
       1},
      {{"optimizer_config.lr_warmup_fraction=0.0", "optimizer_config.lr_warmup_iters=5"}, 1},
      {{"optimizer_config.weight_decay_include=[wq]", "optimizer_config.weight_decay_exclude=[wo]"},
       2},
      {{"optimizer_config.weight_decay_exclude=[wo]", "optimizer_config.weight_decay=0.1"}, 0},
      {{"dataset_config.step_data_dir=steps"}, 0},
      {{"dataset_config.sft_data_path=a.jsonl", "dataset_config.tokenizer_type=byte"}, 0},
      {{"model_config.group_query_attention=False", "model_config.num_query_groups=1"}, 1},
      {{"model_config.position_embedding_type=alibi"}, 0},
      {{"monitor_config.monitor_on=True", "monitor_config.local_norm_format=log"}, 0}};
  for (const Row& row : rows) {
    const AllConfig config = with(row.overrides);
    const std::string name = row.overrides.empty() ? "" : row.overrides.front();
    EXPECT_THAT(remarks_without_effect(config), SizeIs(row.remarks)) << name;
    const std::string text = resolved_yaml(config);
    AllConfig again;
    ASSERT_NO_THROW(again = load(text)) << name;
    EXPECT_THAT(remarks_without_effect(again), IsEmpty()) << name;
    EXPECT_EQ(again.unsupported.size(), config.unsupported.size()) << name;
  }
  EXPECT_THAT(resolved_yaml(with({"parallel_config.sequence_parallel=True"})),
              HasSubstr("\n  sequence_parallel: False  # was True (no effect with "
                        "tensor_model_parallel_size 1), --set\n"));
  for (const char* preset : {"tiny", "char", "moe", "124M", "110M_llama", "7B", "13B", "70B"}) {
    const auto config =
        init_configs_from_yaml(std::string("examples/gpt/pretrain_gpt_") + preset + ".yaml");
    EXPECT_THAT(load(resolved_yaml(config)).notes, IsEmpty()) << preset;
  }
}

TEST(Config, ResolvedYamlNamesOrigins) {
  const std::string text =
      resolved_yaml(with({"model_config.norm_epsilon=1e-6", "training_config.bf16=True"}));
  EXPECT_THAT(text, HasSubstr("\n  training_iters: 20  # f.yaml:2\n"));
  EXPECT_THAT(text, HasSubstr("\n  norm_epsilon: 1e-06  # --set\n"));
  EXPECT_THAT(text, HasSubstr("\n  eps: 1e-08  # default\n"));
  EXPECT_THAT(text,
              HasSubstr("\n  compute_dtype: bfloat16  # derived from training_config.bf16\n"));
  EXPECT_THAT(text,
              HasSubstr("\n  rotary_config:  # default\n    rotary_percent: 1.0  # default\n"));
  EXPECT_THAT(
      config_log_text(with({})),
      HasSubstr("model_config\n    from_hf: null\n    hf_model_type: null\n    vocab_size: 100\n"));
}

TEST(Config, PresetsLoad) {
  for (const std::string name : {"tiny", "char", "124M", "110M_llama", "7B", "13B", "70B"}) {
    const auto config = init_configs_from_yaml("examples/gpt/pretrain_gpt_" + name + ".yaml");
    EXPECT_THAT(config.unsupported, IsEmpty()) << name;
    EXPECT_THAT(config.notes, IsEmpty()) << name;
    EXPECT_FALSE(config.dataset_config.data_path) << name;
  }
  const auto config = init_configs_from_yaml("examples/gpt/pretrain_gpt_70B.yaml");
  EXPECT_EQ(config.model_config.num_query_groups, 8);
  EXPECT_EQ(config.training_config.loss_scale, 4096.0);
  EXPECT_EQ(config.optimizer_config.learning_rate_scheduler_kwargs->end_learning_rate, 1.25e-7);
}

// Those of the tutorial, in each size.
TEST(Config, PresetsHaveTheGuidesValues) {
  for (const std::string name : {"7B", "13B", "70B"}) {
    const auto config = init_configs_from_yaml("examples/gpt/pretrain_gpt_" + name + ".yaml");
    EXPECT_EQ(config.optimizer_config.weight_decay, 0.1) << name;
    EXPECT_EQ(config.dataset_config.shuffle, false) << name;
    EXPECT_TRUE(config.training_config.use_distributed_optimizer) << name;
    EXPECT_EQ(config.dataset_config.batch_size, 1) << name;
    EXPECT_EQ(config.dataset_config.micro_batch_num, 2) << name;
    EXPECT_EQ(config.optimizer_config.betas, (std::vector<double>{0.9, 0.95})) << name;
    EXPECT_EQ(config.optimizer_config.learning_rate, 1.25e-6) << name;
    EXPECT_EQ(config.optimizer_config.learning_rate_scheduler_kwargs->warmup_steps, 200) << name;
    EXPECT_EQ(config.model_config.params_dtype, kFloat32) << name;
    EXPECT_EQ(config.model_config.compute_dtype, kBFloat16) << name;
  }
}

TEST(Config, ReadsAFile) {
  const auto path = std::filesystem::temp_directory_path() / "tapestry_config_test.yml";
  std::ofstream(path) << kTraining << kModel;
  EXPECT_EQ(init_configs_from_yaml(path.string()).model_config.num_layers, 2);
  std::filesystem::remove(path);
  const auto folder = std::filesystem::temp_directory_path() / "tapestry_config_test.yaml";
  std::filesystem::create_directories(folder);
  EXPECT_THROW(init_configs_from_yaml(folder.string()), IoError);
  std::filesystem::remove(folder);
}

}  // namespace
}  // namespace tapestry
