#include "parallel_core/verification/expert_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "autograd/ops/map.h"
#include "autograd/ops/ops.h"
#include "autograd/tensor/error.h"
#include "parallel_core/random.h"
#include "tests/parallel_core/layouts/layout_testing.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;

// Two rows of two tokens, three experts, two for each token.
class CloseChoices : public ::testing::Test {
 protected:
  void SetUp() override {
    random_context().step = 3;
    random_context().sample_ids = {10, 11};
    RecordedChoices record(recorded_);
    EXPECT_EQ(choice_observer(), &record);
    std::vector<int32_t> experts = {0, 1, 1, 2, 2, 0, 0, 1};
    record.choose(5, {.total = 4, .rows = 2, .seq_length = 2, .numbers = {0, 1, 2, 3}}, values_,
                  experts);
  }
  void TearDown() override { random_context() = {}; }

  ExpertChoices recorded_;
  std::vector<float> values_ = {1, 0.5, 0.500004F, 0, 1, 0.9F, 0.3F, 0, 1, 1, 0.7F, 0};
};

TEST_F(CloseChoices, AreImposedAndCounted) {
  EXPECT_EQ(choice_observer(), nullptr);
  ImposedChoices impose(recorded_);
  // Tokens 0 and 3 of the same samples: one by a hair, the other by far another choice.
  const std::vector<float> values = {1, 0.5, 0.500004F, 1, 0.7F, 0};
  std::vector<int32_t> experts = {0, 2, 0, 2};
  impose.choose(5, {.total = 4, .rows = 2, .seq_length = 2, .numbers = {0, 3}}, values, experts);
  EXPECT_THAT(experts, ElementsAre(0, 1, 0, 2));
  EXPECT_EQ(impose.count(), 1);
}

TEST_F(CloseChoices, OfOtherLayersAndStepsAreNot) {
  ImposedChoices impose(recorded_);
  const GroupTokens tokens = {.total = 4, .rows = 2, .seq_length = 2, .numbers = {0}};
  const std::vector<float> values = {1, 0.5, 0.500004F};
  std::vector<int32_t> experts = {0, 2};
  impose.choose(4, tokens, values, experts);
  random_context().step = 2;
  impose.choose(5, tokens, values, experts);
  EXPECT_THAT(experts, ElementsAre(0, 2));
  EXPECT_EQ(impose.count(), 0);
}

// The first router's first two experts.
Tensor tied_rows(ParallelModel& model) {
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (entry.name.ends_with("layers.0.mlp.router.weight")) {
      return entry.parameter->detach().slice(0, 0, 2);
    }
  }
  throw ValueError("no router");
}

// Two experts that no token prefers: what rounding would choose is as in one process, and the
// layout agrees.
TEST(ImposedChoices, LetALayoutWithTiesAgree) {
  const std::string moe = "moe_config.";
  const LayoutPair pair = testing::small_pair(
      "tp=2,dp=2,ep=2",
      {"model_config.vocab_size=32", "dataset_config.batch_size=2", moe + "num_experts=4",
       moe + "moe_router_topk=2", moe + "moe_ffn_hidden_size=24"});
  VerifyOptions options{.steps = 1, .jitter = 0, .timeout_seconds = testing::kTestTimeout};
  options.parts = testing::made_up_data();
  options.model = [](const AllConfig& config) -> std::unique_ptr<ParallelModel> {
    std::unique_ptr<ParallelModel> model = get_model(config);
    const Tensor rows = tied_rows(*model);
    copy_values(dense_copy(rows.slice(0, 0, 1)), rows.slice(0, 1, 2));
    return model;
  };
  const LayoutReport tied = compare_layout(pair, options);
  EXPECT_TRUE(tied.agrees()) << report_text(tied, pair);
  options.parts.started = [](ParallelModel& model) {
    const Tensor row = tied_rows(model).slice(0, 0, 1);
    copy_values(row * (1 - 0x1p-23), row);
  };
  const LayoutReport moved = compare_layout(pair, options);
  EXPECT_TRUE(moved.agrees()) << report_text(moved, pair);
  EXPECT_GT(moved.imposed_choices, tied.imposed_choices);
  EXPECT_THAT(report_text(moved, pair),
              ::testing::HasSubstr(concat(moved.imposed_choices, " choices of experts")));
}

}  // namespace
}  // namespace tapestry
