#include "parallel_core/post_training/grpo/stored_rollouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/post_training/grpo/rollout_source.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::post_training {
namespace {

using data::TempDir;
using ::testing::ElementsAre;

// Four groups of two completions; the completion of number i is the token 10 + i.
class StoredRolloutsTest : public ::testing::Test {
 protected:
  StoredRolloutsTest() {
    std::string text;
    for (int i = 0; i < 8; ++i) {
      text += concat("{\"prompt_ids\": [", i / 2, ", 1], \"completion_ids\": [", 10 + i,
                     "], \"rewards\": [", i % 2, "], \"logprobs\": [-", i, "]}\n");
    }
    config_.post_training_config.rollouts = dir_.write("rollouts.jsonl", text);
    config_.post_training_config.num_generations = 2;
    config_.post_training_config.shuffle_dataset = false;
  }

  StoredRollouts rollouts(const GenerationPlan& plan) const {
    return StoredRollouts(config_, plan, {.seq_length = 16},
                          {.num_generations = 2, .vocab_size = 20, .max_tokens = 16, .end_id = 9});
  }

  static std::vector<int32_t> completions(const RolloutBatch& batch) {
    std::vector<int32_t> result;
    for (int64_t i = 0; i < batch.completions.size(); ++i) {
      result.push_back(batch.completions.ids(i).back());
    }
    return result;
  }

  TempDir dir_;
  AllConfig config_;
};

TEST_F(StoredRolloutsTest, BatchesOfGroupsInTheFilesOrder) {
  StoredRollouts stored = rollouts({.generation_batch = 4});
  EXPECT_THAT(completions(stored.batch(0)), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(completions(stored.batch(1)), ElementsAre(14, 15, 16, 17));
  EXPECT_THAT(completions(stored.batch(2)), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(stored.batch(1).old_log_probs.of(0), ElementsAre(-4));
  EXPECT_LT(stored.batch(1).advantages[0], 0);
  EXPECT_GT(stored.batch(1).advantages[1], 0);
  EXPECT_EQ(stored.epoch(7), 0);
  EXPECT_EQ(stored.epoch(8), 1);
}

TEST_F(StoredRolloutsTest, ShuffledByGroups) {
  config_.post_training_config.shuffle_dataset = true;
  StoredRollouts stored = rollouts({.generation_batch = 8});
  std::vector<std::vector<int32_t>> epochs;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<int32_t> all = completions(stored.batch(epoch));
    epochs.push_back(all);
    for (size_t i = 0; i < all.size(); i += 2) {
      EXPECT_EQ(all[i] % 2, 0);
      EXPECT_EQ(all[i + 1], all[i] + 1);
    }
    std::sort(all.begin(), all.end());
    EXPECT_THAT(all, ElementsAre(10, 11, 12, 13, 14, 15, 16, 17));
  }
  EXPECT_TRUE(epochs[0] != epochs[1] || epochs[1] != epochs[2] || epochs[2] != epochs[3]);
}

TEST_F(StoredRolloutsTest, WhatMakesBatchesIsToldApart) {
  const std::string plain = rollouts({.generation_batch = 4}).fingerprint();
  EXPECT_NE(rollouts({.generation_batch = 8}).fingerprint(), plain);
  config_.post_training_config.shuffle_dataset = true;
  EXPECT_NE(rollouts({.generation_batch = 4}).fingerprint(), plain);
}

TEST_F(StoredRolloutsTest, WeightsOfOtherRewardsAreRefused) {
  config_.post_training_config.reward_weights = {1.0, 2.0};
  EXPECT_ERROR(rollouts({.generation_batch = 4}), ValueError, "reward_weights has 2 numbers");
}

// Two steps share a batch, twice over: parts 0, 1, 0, 1 of batch 0, then batch 1.
TEST_F(StoredRolloutsTest, StepsTrainOnPartsOfBatches) {
  const GenerationPlan plan = {
      .generation_batch = 4, .steps_per_generation = 2, .num_iterations = 2};
  StoredRollouts stored = rollouts(plan);
  RolloutSource source(stored, plan, {.seq_length = 16});
  std::vector<std::vector<int64_t>> first_tokens;
  for (int64_t step = 0; step < 5; ++step) {
    const data::Batch batch =
        source.micro_batch({.step = step, .first_sample = step * 2}, 0, 1, 2, 0, 1);
    ASSERT_EQ(batch.sequences.size(), 1U);
    std::vector<int64_t> tokens;
    for (const data::RowSequence& sequence : batch.sequences[0]) {
      tokens.push_back(batch.tokens[static_cast<size_t>(sequence.first + 2)]);
      EXPECT_EQ(source.drawn()->batch->completions.ids(sequence.number).back(), tokens.back());
    }
    first_tokens.push_back(tokens);
  }
  EXPECT_THAT(first_tokens,
              ElementsAre(ElementsAre(10, 11), ElementsAre(12, 13), ElementsAre(10, 11),
                          ElementsAre(12, 13), ElementsAre(14, 15)));
  EXPECT_EQ(source.epoch(15), 0);
  EXPECT_EQ(source.epoch(16), 1);
}

TEST_F(StoredRolloutsTest, AStepHasTheSameCompletionsInEveryLayout) {
  const GenerationPlan plan = {.generation_batch = 8};
  StoredRollouts stored = rollouts(plan);
  RolloutSource source(stored, plan, {.seq_length = 16});
  const auto drawn = [&](int64_t micro_batches, int64_t rows, int64_t ranks) {
    std::vector<int64_t> numbers;
    for (int64_t m = 0; m < micro_batches; ++m) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        for (const auto& row :
             source.micro_batch({}, m, micro_batches, rows, rank, ranks).sequences) {
          for (const data::RowSequence& sequence : row) {
            numbers.push_back(sequence.number);
          }
        }
      }
    }
    return numbers;
  };
  EXPECT_THAT(drawn(1, 8, 1), ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(drawn(2, 2, 2), ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(drawn(8, 1, 1), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(GenerationPlan, OfAConfiguration) {
  AllConfig config;
  config.dataset_config.batch_size = 4;
  config.dataset_config.micro_batch_num = 2;
  PostTrainingConfig& p = config.post_training_config;
  p.num_generations = 8;
  p.num_iterations = 3;
  EXPECT_EQ(GenerationPlan::of(config, 1).generation_batch, 8);
  EXPECT_EQ(GenerationPlan::of(config, 2).generation_batch, 16);
  EXPECT_EQ(GenerationPlan::of(config, 2).steps(), 3);
  p.steps_per_generation = 2;
  EXPECT_EQ(GenerationPlan::of(config, 1).generation_batch, 16);
  p.steps_per_generation.reset();
  p.generation_batch_size = 24;
  EXPECT_EQ(GenerationPlan::of(config, 1).steps_per_generation, 3);
  EXPECT_EQ(GenerationPlan::of(config, 1).batch_of(9), 1);
  EXPECT_EQ(GenerationPlan::of(config, 1).part_of(10), 1);
  EXPECT_ERROR(GenerationPlan::of(config, 2), ValueError, "no multiple of the 16 completions");
  p.generation_batch_size.reset();
  p.num_generations = 3;
  EXPECT_ERROR(GenerationPlan::of(config, 1), ValueError,
               "num_generations 3 does not divide the 8");
}

}  // namespace
}  // namespace tapestry::post_training
