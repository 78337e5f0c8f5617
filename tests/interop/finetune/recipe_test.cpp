#include "interop/finetune/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "autograd/tensor/error.h"
#include "interop/finetune/memory_remedies.h"
#include "parallel_core/config/config.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace recipe_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kModel = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
  "vocab_size": 1000, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8,
  "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 4096,
  "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "tie_word_embeddings": false})";

class Recipe : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.write("model/config.json", kModel);
    recipe_.from_hf = dir_.file("model");
    recipe_.data = {"examples.jsonl"};
    facts_ = {.positions = 4096,
              .stored = kBFloat16,
              .seq_length = 1024,
              .data_parallel_size = 1,
              .training_iters = 40};
  }
  AllConfig config() const {
    return init_configs_from_text(recipe_yaml(recipe_, facts_), "recipe",
                                  {.overrides = recipe_.overrides});
  }
  std::string error() const {
    try {
      check_recipe(recipe_);
    } catch (const ValueError& e) {
      return e.what();
    }
    return "none";
  }

  data::TempDir dir_;
  FinetuneRecipe recipe_;
  RecipeFacts facts_;
};

TEST_F(Recipe, FewRowsMakeSmallUpdates) {
  EXPECT_EQ(derived_batch_rows(1000, 1), 8);
  EXPECT_EQ(derived_batch_rows(153, 1), 8);  // 20 updates
  EXPECT_EQ(derived_batch_rows(152, 1), 4);
  EXPECT_EQ(derived_batch_rows(24, 1), 1);
  EXPECT_EQ(derived_batch_rows(1, 1), 1);
  EXPECT_EQ(derived_batch_rows(1000, 3), 6);  // whole rows on every rank
  EXPECT_EQ(derived_batch_rows(1, 3), 3);
  EXPECT_EQ(derived_batch_rows(1000, 16), 16);
  facts_.batch_rows = 2;
  facts_.packing = false;
  facts_.training_iters = 24;
  AllConfig c = config();
  EXPECT_EQ(c.dataset_config.micro_batch_num, 2);
  EXPECT_FALSE(c.dataset_config.sft_packing);
  EXPECT_EQ(c.optimizer_config.lr_warmup_iters, 0);  // the first update counts
  facts_.training_iters = 100;
  EXPECT_EQ(config().optimizer_config.lr_warmup_iters, 3);
}

TEST_F(Recipe, ATokenizerOfPiecesIsTheFolders) {
  facts_.tokenizer_type = "";
  EXPECT_FALSE(config().dataset_config.tokenizer_model.has_value());
  dir_.write("model/tokenizer.model", "x");
  EXPECT_EQ(config().dataset_config.tokenizer_model, dir_.file("model/tokenizer.model"));
  EXPECT_EQ(config().dataset_config.tokenizer_type, "sentencepiece");
}

TEST_F(Recipe, EvaluatesOnlyWhereThereAreExamplesForIt) {
  EXPECT_EQ(config().training_config.eval_interval, 4);
  facts_.has_validation = false;
  EXPECT_FALSE(config().training_config.eval_interval.has_value());
}

TEST_F(Recipe, AnAdapterBesideWeightsAsTheyAreStored) {
  recipe_.lora_targets = {".*q_proj", ".*v_proj"};
  recipe_.validation_share = 0.031;
  const AllConfig c = config();
  EXPECT_TRUE(c.lora_config.use_lora);
  EXPECT_EQ(c.lora_config.lora_rank, 16);
  EXPECT_EQ(c.lora_config.lora_alpha, 32);
  ASSERT_TRUE(c.lora_config.target_cells.has_value());
  EXPECT_THAT(c.lora_config.target_cells->patterns, ::testing::ElementsAre(".*q_proj", ".*v_proj"));
  EXPECT_EQ(c.model_config.params_dtype, kBFloat16);
  EXPECT_EQ(c.model_config.compute_dtype, kBFloat16);
  EXPECT_EQ(c.model_config.seq_length, 1024);
  EXPECT_EQ(c.model_config.hidden_size, 512);
  EXPECT_EQ(c.dataset_config.split, "969,31,0");
  EXPECT_EQ(c.dataset_config.micro_batch_num, 8);
  EXPECT_EQ(c.training_config.training_iters, 40);
}

TEST_F(Recipe, AllWeightsInFloat32) {
  recipe_.full = true;
  const AllConfig c = config();
  EXPECT_FALSE(c.lora_config.use_lora);
  EXPECT_EQ(c.model_config.params_dtype, kFloat32);
  EXPECT_EQ(c.model_config.compute_dtype, kBFloat16);
}

TEST_F(Recipe, ABaseInBlocks) {
  EXPECT_EQ(config().lora_config.base_dtype, "params_dtype");
  for (const BlockFormat format : kernels::kBlockFormats) {
    recipe_.blocks = format;
    EXPECT_EQ(config().lora_config.base_dtype, kernels::name_of(format));
  }
}

TEST_F(Recipe, RowsAreSharedOutOverRanks) {
  facts_.data_parallel_size = 4;
  EXPECT_EQ(config().dataset_config.micro_batch_num, 2);
}

TEST_F(Recipe, WhatIsSetGoesBeforeWhatIsDerived) {
  recipe_.overrides = {"optimizer_config.learning_rate=0.5", "lora_config.lora_rank=3"};
  const AllConfig c = config();
  EXPECT_EQ(c.lora_config.lora_rank, 3);
}

TEST_F(Recipe, RowsTakeTheLongestExample) {
  EXPECT_EQ(derived_seq_length(1000, 2048), 1024);
  EXPECT_EQ(derived_seq_length(1024, 2048), 1024);
  EXPECT_EQ(derived_seq_length(1025, 2048), 1088);
  EXPECT_EQ(derived_seq_length(30, 2048), 256);
  EXPECT_EQ(derived_seq_length(30, 128), 128);
  EXPECT_EQ(derived_seq_length(9000, 2048), 2048);
}

TEST_F(Recipe, WhatIsOutOfRangeIsNamed) {
  EXPECT_EQ(error(), "none");
  recipe_.full = true;
  recipe_.blocks = BlockFormat::kQ8_0;
  EXPECT_THAT(error(), Says("--full ... trains all weights ... --int8"));
  recipe_ = {.from_hf = "model", .data = {"x"}, .lora_rank = 0};
  EXPECT_THAT(error(), Says("--lora_rank ... must be positive, got ... 0"));
  recipe_ = {.from_hf = "model"};
  EXPECT_THAT(error(), HasSubstr("--data FILE is needed"));
  recipe_ = {.from_hf = "model", .data = {"x"}, .validation_share = 1.0};
  EXPECT_THAT(error(), Says("--validation_share ... must lie in ... [0, 1), ... 1"));
}

TEST_F(Recipe, ATaskHasItsSection) {
  recipe_.task = "dpo";
  recipe_.validation_data = {"held_out.jsonl"};
  recipe_.reference = "adapter_off";
  recipe_.batch_rows = 6;
  facts_.batch_rows = 6;
  const AllConfig c = config();
  EXPECT_EQ(c.post_training_config.task, "dpo");
  EXPECT_EQ(c.post_training_config.reference, "adapter_off");
  EXPECT_THAT(*c.post_training_config.data, ::testing::ElementsAre("examples.jsonl"));
  EXPECT_THAT(*c.post_training_config.validation_data, ::testing::ElementsAre("held_out.jsonl"));
  EXPECT_FALSE(c.dataset_config.sft_data_path.has_value());
  EXPECT_EQ(c.dataset_config.batch_size * c.dataset_config.micro_batch_num, 6);
  EXPECT_EQ(c.optimizer_config.learning_rate, 1e-5);
  EXPECT_THAT(recipe_yaml(recipe_, facts_), HasSubstr("a low-rank adapter of"));
}

TEST_F(Recipe, ATaskTakesWholePartsOfItsBatch) {
  recipe_.task = "grpo";
  EXPECT_EQ(derived_task_batch(recipe_, 1).update, 32);
  EXPECT_EQ(derived_task_batch(recipe_, 1).at_once, 8);
  recipe_.batch_rows = 12;
  EXPECT_EQ(derived_task_batch(recipe_, 2).update, 12);
  EXPECT_EQ(derived_task_batch(recipe_, 2).at_once, 2);
  recipe_.batch_rows = {};
  recipe_.task = "kto";
  EXPECT_EQ(derived_task_batch(recipe_, 4).update, 8);
}

TEST_F(Recipe, OptionsOfAnotherTaskAreNamed) {
  recipe_.task = "ppo";
  EXPECT_THAT(error(), Says("--task ppo is not known ... dpo"));
  recipe_.task = "orpo";
  recipe_.reference = "folder";
  EXPECT_THAT(error(), Says("--reference belongs to --task dpo, kto or grpo, not to orpo"));
  recipe_ = {.from_hf = "model", .data = {"x"}};
  recipe_.reward_funcs = {"regex: x"};
  EXPECT_THAT(error(), Says("--reward belongs to --task grpo"));
  recipe_ = {.from_hf = "model", .task = "dpo", .reference = "adapter_off", .data = {"x"}};
  recipe_.full = true;
  EXPECT_THAT(error(), Says("--reference adapter_off: --full trains all weights"));
}

TEST_F(Recipe, RemediesComeWithTheirBytes) {
  recipe_.full = true;
  const AllConfig c = config();
  const int64_t now = estimate_memory(c).peak();
  const std::vector<MemoryRemedy> remedies = memory_remedies(recipe_, facts_);
  std::vector<std::string> options;
  for (const MemoryRemedy& remedy : remedies) {
    options.push_back(remedy.option);
    EXPECT_EQ(remedy.peak + remedy.saved, now) << remedy.option;
    EXPECT_GT(remedy.saved, 0) << remedy.option;
  }
  EXPECT_THAT(options, ::testing::Contains("--lora_rank 16 in place of --full"));
  EXPECT_THAT(options, ::testing::Contains("--seq_length 512"));
  EXPECT_THAT(options, ::testing::Contains("--set parallel_config.recompute_config=True"));

  EXPECT_NO_THROW(check_recipe_fits(recipe_, facts_, c, now));
  try {
    check_recipe_fits(recipe_, facts_, c, remedies.front().peak);
    FAIL() << "a run that needs more than there is";
  } catch (const ValueError& e) {
    EXPECT_THAT(e.what(), HasSubstr("Each of these suffices:\n  " + remedies.front().option));
  }
  try {
    check_recipe_fits(recipe_, facts_, c, 1000);
    FAIL() << "a run that needs more than there is";
  } catch (const ValueError& e) {
    EXPECT_THAT(e.what(), Not(HasSubstr("suffices")));
    EXPECT_THAT(e.what(), Says("These help ... larger machine"));
  }
}

}  // namespace
}  // namespace recipe_test
}  // namespace tapestry
