#include "parallel_core/estimates/memory_estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

AllConfig preset(const std::string& name, std::vector<std::string> overrides = {}) {
  return init_configs_from_yaml("examples/gpt/pretrain_gpt_" + name + ".yaml",
                                {.overrides = std::move(overrides)});
}

// The 7B preset with every number kept in float32, and nothing shared out.
AllConfig plain_7b() {
  const std::string o = "optimizer_config.";
  return preset("7B", {o + "store_param_remainders=False", o + "exp_avg_dtype=float32",
                       o + "exp_avg_sq_dtype=float32", o + "main_grads_dtype=float32",
                       "training_config.use_distributed_optimizer=False"});
}

TEST(ParameterCount, KnownModels) {
  EXPECT_EQ(parameter_count(preset("124M").model_config), 124'475'904);
  EXPECT_EQ(parameter_count(preset("110M_llama").model_config), 134'105'856);
  EXPECT_EQ(parameter_count(preset("7B", {"model_config.num_layers=32"}).model_config),
            6'738'415'616);
  EXPECT_EQ(parameter_count(preset("13B").model_config), 13'015'864'320);
  EXPECT_EQ(parameter_count(preset("70B").model_config), 68'976'648'192);
}

// Counted by hand: 2 layers, hidden 8, ffn 12, 4 heads of 3 on 2 groups, vocabulary 10.
TEST(ParameterCount, EveryPart) {
  TransformerConfig model;
  model.vocab_size = 10;
  model.num_layers = 2;
  model.num_attention_heads = 4;
  model.num_query_groups = 2;
  model.kv_channels = 3;
  model.hidden_size = 8;
  model.ffn_hidden_size = 12;
  model.seq_length = 5;
  model.max_position_embeddings = 6;
  model.position_embedding_type = "none";
  const int64_t weights = 8 * 12 + 2 * 8 * 6 + 12 * 8 + 2 * 8 * 12;
  const int64_t biases = 12 + 2 * 6 + 8 + 12 + 8;
  const int64_t plain = 10 * 8 + 2 * (weights + biases + 4 * 8) + 2 * 8;
  EXPECT_EQ(parameter_count(model), plain);
  model.position_embedding_type = "learned_absolute";
  EXPECT_EQ(parameter_count(model), plain + 6 * 8);
  model.untie_embeddings_and_output_weights = true;
  EXPECT_EQ(parameter_count(model), plain + 6 * 8 + 10 * 8);
  model.qk_layernorm = true;
  EXPECT_EQ(parameter_count(model), plain + 6 * 8 + 10 * 8 + 2 * 4 * 3);
  model.hidden_act = "swiglu";
  model.mlp_has_bias = false;
  EXPECT_EQ(parameter_count(model), plain + 6 * 8 + 10 * 8 + 2 * 4 * 3 + 2 * (8 * 12 - 12 - 8));
}

TEST(ParameterCount, AbsurdSizesAreAnError) {
  TransformerConfig model = preset("tiny").model_config;
  model.hidden_size = 2147483647;
  model.vocab_size = 2147483647;
  EXPECT_THROW(parameter_count(model), ValueError);
}

// 12 layers: the first of four stages has the embeddings and four micro-batches in flight, the last
// one has the head.
TEST(MemoryEstimate, TheStageThatNeedsTheMost) {
  const std::vector<std::string> four = {"parallel_config.pipeline_model_parallel_size=4",
                                         "dataset_config.micro_batch_num=8"};
  const MemoryEstimate whole = estimate_memory(preset("124M", {four[1]}));
  const MemoryEstimate stage = estimate_memory(preset("124M", four));
  EXPECT_EQ(stage.stages, 4);
  EXPECT_EQ(stage.stage, 0);
  EXPECT_EQ(stage.in_flight, 4);
  EXPECT_EQ(stage.parameter_count, 768 * (50304 + 1024) + 3 * 7'087'872);
  EXPECT_NEAR(static_cast<double>(stage.activations), static_cast<double>(whole.activations),
              0.2 * static_cast<double>(whole.activations));
  EXPECT_EQ(stage.logits, 0);
  EXPECT_LT(stage.total(), whole.total());
  EXPECT_THAT(memory_text(stage), HasSubstr("pipeline stage 0 of 4"));
  EXPECT_THAT(memory_text(stage), HasSubstr("activations of 4 passes in flight"));

  // With few layers elsewhere, the head is what counts: the copy of the table and the logits.
  const MemoryEstimate last = estimate_memory(preset(
      "124M", {"parallel_config.pipeline_model_parallel_size=2",
               "parallel_config.num_layer_list=[1, 11]", "dataset_config.micro_batch_num=2"}));
  EXPECT_EQ(last.stage, 1);
  EXPECT_EQ(last.in_flight, 1);
  EXPECT_EQ(last.parameter_count, 768 * 50304 + 11 * 7'087'872 + 2 * 768);
  EXPECT_EQ(last.logits, whole.logits);

  const MemoryEstimate interleaved = estimate_memory(
      preset("124M", {four[0], four[1], "parallel_config.virtual_pipeline_model_parallel_size=3"}));
  EXPECT_EQ(interleaved.in_flight, 2 * 3 + 2 * 4 + 1);
}

// Two layers of two stages, and two more for further tokens: these are of the second one, which has
// a copy of the table of embeddings for them.
TEST(MemoryEstimate, LayersThatPredictFurtherTokensAreOfTheLastStage) {
  const std::vector<std::string> stages = {
      "model_config.position_embedding_type=rope", "model_config.num_layers=2",
      "model_config.untie_embeddings_and_output_weights=True",
      "parallel_config.pipeline_model_parallel_size=2", "dataset_config.micro_batch_num=1"};
  const MemoryEstimate plain = estimate_memory(preset("124M", stages));
  std::vector<std::string> more = stages;
  more.emplace_back("model_config.mtp_num_layers=2");
  const MemoryEstimate ahead = estimate_memory(preset("124M", more));
  EXPECT_EQ(ahead.stage, 1);
  const int64_t layer = 7'087'872;
  EXPECT_EQ(ahead.parameter_count,
            2 * 768 * 50304 + 3 * layer + 2 * 768 + 2 * (2 * 768 * 768 + 3 * 2 * 768));
  EXPECT_GT(ahead.activations, 2 * plain.activations);
  const auto whole = [&](const char* depths) {
    return parameter_count(
        preset("124M", {stages[0], std::string("model_config.mtp_num_layers=") + depths})
            .model_config);
  };
  EXPECT_EQ(whole("1"), whole("0") + layer + 2 * 768 * 768 + 3 * 2 * 768);
}

TEST(MemoryEstimate, Kinds) {
  const MemoryEstimate adam = estimate_memory(preset("124M"));
  EXPECT_EQ(adam.parameters, 4 * 124'475'904LL);
  EXPECT_EQ(adam.gradients, adam.parameters);
  EXPECT_EQ(adam.optimizer, 2 * adam.parameters);
  EXPECT_EQ(adam.weight_copies, 0);
  const auto logits = [](const std::vector<std::string>& overrides) {
    return estimate_memory(preset("124M", overrides)).logits;
  };
  EXPECT_EQ(adam.logits, 4 * 512LL * 50304);
  EXPECT_EQ(logits({"model_config.fused_linear_cross_entropy=False"}), 4 * 1024LL * 50304);
  EXPECT_EQ(logits({"training_config.bf16=True"}), 2 * 1024LL * 50304);
  EXPECT_EQ(logits({"training_config.fp16=True"}), 2 * 1024LL * 50304);
  EXPECT_EQ(
      logits({"training_config.fp16=True", "post_training_config.task=orpo",
              "post_training_config.data=[pairs.jsonl]", "training_config.eval_interval=null"}),
      2 * 512LL * 50304);
  const std::vector<std::string> sgd = {"optimizer_config.optimizer_type=SGD",
                                        "optimizer_config.betas=[0.9, 0.999]"};
  EXPECT_EQ(estimate_memory(preset("124M", sgd)).optimizer, 0);
  const auto states = [&](std::vector<std::string> keys) {
    keys.insert(keys.begin(), sgd[1]);
    const MemoryEstimate e = estimate_memory(preset("124M", keys));
    return static_cast<double>(e.optimizer) / (static_cast<double>(e.parameters) / 4);
  };
  const std::string type = "optimizer_config.optimizer_type=";
  EXPECT_EQ(states({type + "Lion"}), 4);
  EXPECT_EQ(states({type + "Lion", "optimizer_config.exp_avg_dtype=bfloat16"}), 2);
  // Beside momentum, statistics of the rows and columns of each matrix: queries, keys, values and
  // output of 768 x 768, two of 768 x 3,072 in each layer, and both tables.
  const double sizes = 12 * (4 * (768 + 768) + 2 * (768 + 3072)) + (50304 + 768) + (1024 + 768);
  const double statistics = 4 * sizes / 124'475'904;
  EXPECT_NEAR(states({type + "Came"}), 4 + 2 * statistics, 1e-6);
  EXPECT_NEAR(states({type + "Adafactor"}), statistics, 1e-6);
  EXPECT_NEAR(states({type + "Adafactor", "optimizer_config.momentum=0.9"}), 4 + statistics, 1e-6);
  EXPECT_NEAR(states({type + "Muon"}), (4 * 85.1 + 8 * 39.4) / 124.4, 0.02);
  const std::string names = "optimizer_config.adamw_include=";
  EXPECT_NEAR(states({type + "Muon", names + "['*embeddings*']"}), (4 * 85.1 + 8 * 39.4) / 124.4,
              0.02);
  EXPECT_NEAR(states({type + "Muon", names + "[]"}), 4, 0.01);  // vectors have moments
  EXPECT_EQ(states({type + "Muon", names + "['*']"}), 8);
  // The two matrices of the MLP of each of twelve layers.
  EXPECT_NEAR(states({type + "Muon", names + "['*.linear_fc?.*']"}),
              4 + 4 * (12 * 2 * 768 * 3072) / 124.4e6, 0.01);
  const MemoryEstimate twice = estimate_memory(preset("124M", {"dataset_config.batch_size=2"}));
  EXPECT_EQ(twice.activations, 2 * adam.activations);
  EXPECT_EQ(twice.parameters, adam.parameters);
  const MemoryEstimate half = estimate_memory(plain_7b());
  // The table of embeddings is looked up, and no product is made of it.
  EXPECT_EQ(half.weight_copies, half.parameters / 2 - 2 * 32000 * 4096);
}

TEST(MemoryEstimate, OptionsThatTakeFewerBytesPerParameter) {
  const AllConfig plain = plain_7b();
  AllConfig lean = plain;
  lean.optimizer_config.store_param_remainders = true;
  lean.optimizer_config.exp_avg_dtype = kBFloat16;
  lean.optimizer_config.exp_avg_sq_dtype = kBFloat16;
  lean.optimizer_config.main_grads_dtype = kBFloat16;
  const MemoryEstimate before = estimate_memory(plain);
  const MemoryEstimate after = estimate_memory(lean);
  const auto states = [](const MemoryEstimate& e) {
    return e.parameters + e.weight_copies + e.gradients + e.optimizer;
  };
  EXPECT_EQ(states(before), (4 + 2 + 4 + 8) * before.parameter_count - 2 * 32000 * 4096);
  EXPECT_EQ(states(after), (2 + 2 + 2 + 4) * before.parameter_count);
  EXPECT_EQ(after.activations, before.activations);
  int64_t saved = 0;
  for (const MemoryEstimate::Saving& saving : before.savings) {
    saved += saving.bytes;
  }
  EXPECT_EQ(states(before) - states(after), saved - 2 * 32000 * 4096);
  EXPECT_TRUE(after.savings.empty());
  EXPECT_EQ(estimate_memory(preset("7B")).total(), after.total());
  EXPECT_NO_THROW(check_fits(after, int64_t{22} << 30U));
}

TEST(MemoryEstimate, WhatDataParallelRanksShareOut) {
  const int64_t ranks = 8;
  AllConfig config = plain_7b();
  const MemoryEstimate whole = estimate_memory(config);
  const MemoryEstimate replica = estimate_memory(config, ranks);
  EXPECT_EQ(replica.parameters, whole.parameters);
  EXPECT_EQ(replica.weight_copies, whole.weight_copies);
  EXPECT_EQ(replica.gradients, whole.gradients);
  EXPECT_EQ(replica.optimizer, whole.optimizer);
  EXPECT_EQ(replica.activations, whole.activations);
  EXPECT_GT(replica.process, whole.process);
  config.training_config.bucket_size = 1'000'000;
  const auto with_level = [&](const char* level) {
    config.parallel_config.zero_level = level;
    return estimate_memory(config, ranks);
  };
  const TransformerConfig& model = config.model_config;
  const auto largest = static_cast<double>(model.hidden_size *
                                           std::max(model.vocab_size, 2 * model.ffn_hidden_size));
  const auto count = static_cast<double>(whole.parameter_count);
  const MemoryEstimate z1 = with_level("z1");
  EXPECT_EQ(z1.optimizer, whole.optimizer / ranks);
  EXPECT_EQ(z1.gradients, whole.gradients);
  const MemoryEstimate z2 = with_level("z2");
  EXPECT_EQ(z2.optimizer, z1.optimizer);
  EXPECT_NEAR(static_cast<double>(z2.gradients), 4 * (count / 8 + 3 * largest), 8);
  EXPECT_EQ(z2.parameters, whole.parameters);
  const MemoryEstimate z3 = with_level("z3");
  EXPECT_NEAR(static_cast<double>(z3.parameters), 4 * (count / 8 + 2 * largest), 8);
  EXPECT_NEAR(static_cast<double>(z3.weight_copies), 2 * 2 * largest, 8);
  EXPECT_EQ(z3.activations, whole.activations);
}

TEST(MemoryEstimate, ContextParallelRanksShareTheTokensOfASequence) {
  const auto estimate = [](const std::string& ranks, const std::string& sharded) {
    return estimate_memory(
        preset("124M", {"model_config.fused_linear_cross_entropy=False",
                        "parallel_config.context_parallel_size=" + ranks,
                        "training_config.use_distributed_optimizer=" + sharded}));
  };
  const MemoryEstimate one = estimate("1", "False");
  const MemoryEstimate two = estimate("2", "False");
  EXPECT_EQ(two.parameters, one.parameters);
  EXPECT_EQ(two.gradients, one.gradients);
  EXPECT_EQ(two.optimizer, one.optimizer);
  EXPECT_EQ(two.activations, one.activations / 2);
  EXPECT_EQ(two.logits, one.logits / 2);
  // The keys and values of three heads of twelve, 1,024 tokens, float32: three times, and their
  // gradients twice.
  EXPECT_EQ(two.workspace, one.workspace / 2 + 2 * 1024 * 192 * (3 + 2) * 4);
  EXPECT_EQ(estimate("2", "True").optimizer, one.optimizer / 2);
}

TEST(MemoryEstimate, RecomputedLayersKeepLess) {
  const MemoryEstimate plain = estimate_memory(preset("124M"));
  const MemoryEstimate full =
      estimate_memory(preset("124M", {"parallel_config.recompute_config=True"}));
  // 12 layers of 1,024 tokens of width 768, float32: of each the two norms' inputs and results, q,
  // k, v, what attention gives, the MLP's 3,072 channels before the activation, and a number a
  // head.
  const int64_t token = 4 * (4 * 768 + 3 * 768 + 768 + 3072 + 12);
  EXPECT_NEAR(static_cast<double>(plain.activations), 1024.0 * (12 * token + 4 * (3072 + 2 * 768)),
              1e3);
  EXPECT_EQ(full.recompute_saved, 12 * 1024 * (token - 4 * (768 + 12)));
  EXPECT_NEAR(static_cast<double>(plain.activations - full.activations),
              static_cast<double>(plain.recompute_could_save), 1e3);
  // Its products but the last one: 8 of 12 hidden^2 a token, and attention's over half of the keys.
  EXPECT_DOUBLE_EQ(full.recompute_flops, 12.0 * 1024 * (2 * 8 * 768.0 * 768 + 4 * 512.0 * 768));
  EXPECT_EQ(full.recompute_could_save, 0);
  EXPECT_LT(full.activations, plain.activations * 3 / 10);
}

TEST(MemoryEstimate, UpdatingInBackwardHoldsOneGradient) {
  AllConfig config =
      preset("tiny", {"optimizer_config.optimizer_in_backward=True", "optimizer_config.clip_grad=0",
                      "training_config.grad_clip_kwargs=null", "dataset_config.micro_batch_num=1"});
  EXPECT_EQ(estimate_memory(config).gradients, 4 * 256 * 1024);
}

TEST(MemoryEstimate, TooLittleMemoryNamesTheOptions) {
  try {
    check_fits(estimate_memory(plain_7b()), int64_t{22} << 30U);
    FAIL() << "fits";
  } catch (const ValueError& error) {
    for (const char* part :
         {"optimizer_config.store_param_remainders: ... True ... (2.8 GiB less)",
          "optimizer_config.main_grads_dtype: bfloat16 (2.8 GiB less)",
          "optimizer_config.exp_avg_dtype: bfloat16", "optimizer_config.exp_avg_sq_dtype"}) {
      EXPECT_THAT(error.what(), Says(part));
    }
  }
}

TEST(MemoryEstimate, TooLittleMemoryIsExplained) {
  const MemoryEstimate estimate = estimate_memory(preset("70B"));
  EXPECT_NO_THROW(check_fits(estimate, estimate.total()));
  try {
    check_fits(estimate, int64_t{8} << 30U);
    FAIL() << "fits";
  } catch (const ValueError& error) {
    for (const char* part : {"8.0 GiB are available", "parameters (68976648192): 257.0 GiB",
                             "gradients:", "optimizer state:", "activations", "logits", "workspace",
                             "num_layers", "examples/gpt/pretrain_gpt_tiny.yaml"}) {
      EXPECT_THAT(error.what(), Says(part));
    }
  }
  const auto long_batch = preset("tiny", {"dataset_config.batch_size=100000"});
  try {
    check_fits(estimate_memory(long_batch), 1 << 30);
    FAIL() << "fits";
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), Says("a smaller ... dataset_config.batch_size"));
  }
}

TEST(SizeText, Units) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(1536), "1.5 KiB");
  EXPECT_EQ(size_text(int64_t{3} << 40U), "3.0 TiB");
}

// Two layers with hidden 8, MLP 12 and rank 3 beside two matrices, in bfloat16.
TEST(MemoryEstimate, OfAdaptersAlone) {
  const std::vector<std::string> small = {
      "model_config.num_layers=2",
      "model_config.hidden_size=8",
      "model_config.ffn_hidden_size=12",
      "model_config.vocab_size=10",
      "model_config.hidden_act=swiglu",
      "model_config.compute_dtype=bfloat16",
      "model_config.params_dtype=bfloat16",
      "model_config.untie_embeddings_and_output_weights=True",
      "lora_config.use_lora=True",
      "lora_config.lora_rank=3",
      "lora_config.target_cells=[{target_cells: ['.*down_proj', '.*w_up']}]"};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> all = small;
    if (!more.empty()) {
      all.push_back(more);
    }
    return preset("tiny", all);
  };
  const AllConfig config = with("");
  const int64_t base = parameter_count(config.model_config);
  const int64_t adapters = 2 * 3 * ((8 + 12) + (12 + 8));
  const MemoryEstimate estimate = estimate_memory(config);
  EXPECT_EQ(estimate.parameter_count, base + adapters);
  EXPECT_EQ(estimate.parameters, 2 * base + 4 * adapters);
  EXPECT_EQ(estimate.weight_copies, 2 * adapters);
  EXPECT_EQ(estimate.gradients, 4 * adapters);
  EXPECT_EQ(estimate.optimizer, 8 * adapters);
  EXPECT_EQ(saved_bytes(config), 12.0 * static_cast<double>(adapters));
  const MemoryEstimate head = estimate_memory(with("lora_config.modules_to_save=[lm_head]"));
  EXPECT_EQ(head.gradients, 4 * (adapters + 8 * 10));
  EXPECT_EQ(head.optimizer, 8 * adapters + 12 * 8 * 10);
  const MemoryEstimate shared = estimate_memory(with("parallel_config.zero_level=z2"), 2);
  EXPECT_EQ(shared.parameters, estimate.parameters);
  EXPECT_EQ(shared.gradients, 2 * adapters);
  EXPECT_EQ(shared.optimizer, 4 * adapters);
}

}  // namespace
}  // namespace tapestry
