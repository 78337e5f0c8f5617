// When a model ends in a score head.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/parameter_count.h"
#include "tests/message_of.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace score_head_config_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Overrides;
using testing::small_config;

const std::string kReward = "post_training_config.task=reward";
const std::string kData = "post_training_config.data=[pairs.jsonl]";
const std::string kHead = "model_config.score_head=True";

std::string refusal(const Overrides& overrides) {
  return message_of<ConfigError>([&] { small_config(overrides); });
}

TEST(ScoreHead, FollowsFromTheTask) {
  EXPECT_FALSE(small_config().model_config.score_head);
  const AllConfig config = small_config({kReward, kData});
  EXPECT_TRUE(config.model_config.score_head);
  EXPECT_EQ(config.origins.at("model_config.score_head").kind, ConfigOrigin::Kind::kDerived);
  EXPECT_TRUE(small_config({kHead}).model_config.score_head);
}

TEST(ScoreHead, TakesThePlaceOfTheOutputLayer) {
  const std::string untied = "model_config.untie_embeddings_and_output_weights=True";
  const int64_t tied = parameter_count(small_config().model_config);
  EXPECT_EQ(parameter_count(small_config({kHead}).model_config), tied + 32);
  EXPECT_EQ(parameter_count(small_config({kHead, untied}).model_config), tied + 32);
}

TEST(ScoreHead, OtherTasksPredictTokens) {
  EXPECT_THAT(refusal({kHead, "post_training_config.task=dpo"}),
              AllOf(HasSubstr("score_head"), HasSubstr("task dpo"), HasSubstr("language model")));
}

TEST(ScoreHead, IsTrainedBesideAdapters) {
  const std::string lora = "lora_config.use_lora=True";
  const auto saved = [](const Overrides& overrides) {
    return small_config(overrides).lora_config.modules_to_save;
  };
  EXPECT_THAT(saved({kReward, kData, lora}), ElementsAre("score"));
  EXPECT_THAT(saved({kReward, kData, lora, "lora_config.modules_to_save=['scor.']"}),
              ElementsAre("scor."));
  EXPECT_THAT(saved({kReward, kData, lora, "lora_config.modules_to_save=[final_norm]"}),
              ElementsAre("final_norm", "score"));
  EXPECT_TRUE(saved({lora}).empty());
  EXPECT_EQ(small_config({kReward, kData, lora}).model_config.lora.modules_to_save,
            saved({kReward, kData, lora}));
}

TEST(ScoreHead, HasNoLayersAhead) {
  EXPECT_THAT(refusal({kReward, kData, "model_config.mtp_num_layers=1"}),
              AllOf(HasSubstr("mtp_num_layers"), HasSubstr("score_head")));
}

}  // namespace
}  // namespace score_head_config_test
}  // namespace tapestry
