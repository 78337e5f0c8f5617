#include "parallel_core/planning/layouts/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parallel_core/planning/planning_testing.h"
#include "tests/says.h"

namespace tapestry::planning {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PlannedLayouts, KeepTheBatchAndUseAllRanks) {
  const AllConfig config = planned_config();
  for (const int64_t ranks : {1, 2, 3, 4, 6, 8}) {
    const KeptBatch batch = kept_batch(config, 1);
    EXPECT_EQ(batch.sequences, 16);
    EXPECT_EQ(batch.micro_batch, 0);
    int64_t made = 0;
    for (const LayoutChoice& choice : all_choices(config, ranks, 1, batch)) {
      const LayoutOrRefusal layout = make_layout(config, choice, batch);
      EXPECT_EQ(choice.ranks(), ranks);
      if (layout.refusal.empty()) {
        ++made;
        EXPECT_EQ(layout.layout.ranks(), ranks);
        EXPECT_EQ(global_batch_size(layout.layout.config, choice.data), 16);
      }
    }
    EXPECT_GT(made, 0) << ranks;
  }
}

TEST(PlannedLayouts, AreRefusedInTheWordsOfARun) {
  const AllConfig config = planned_config();
  const KeptBatch batch = kept_batch(config, 1);
  const LayoutOrRefusal refused = make_layout(config, {.tensor = 3, .micro_batch = 1}, batch);
  EXPECT_THAT(refused.refusal, Says("num_attention_heads ... not divisible by ... 3"));
  const LayoutOrRefusal ramp =
      make_layout(planned_config({"training_config.rampup_batch_size=[2,2,100]"}),
                  {.data = 4, .micro_batch = 1}, batch);
  EXPECT_THAT(ramp.refusal, Says("rampup_batch_size"));
}

// A router's balance loss, and a mean over the tokens that count, are those of a micro-batch.
TEST(PlannedLayouts, KeepMicroBatchesThatAreComputedWith) {
  EXPECT_EQ(kept_batch(planned_config({"moe_config.num_experts=4",
                                       "moe_config.moe_router_load_balancing_type=aux_loss",
                                       "moe_config.moe_aux_loss_coeff=0.01"}),
                       2)
                .micro_batch,
            2);
  EXPECT_EQ(kept_batch(planned_config({"dataset_config.eod_mask_loss=True"}), 1).micro_batch, 2);
  const AllConfig by_token = planned_config(
      {"dataset_config.eod_mask_loss=True", "training_config.calculate_per_token_loss=True"});
  EXPECT_EQ(kept_batch(by_token, 1).micro_batch, 0);
  EXPECT_EQ(kept_batch(by_token, 1).sequences, 16);
}

TEST(PlannedLayouts, AreTold) {
  const AllConfig config = planned_config();
  const KeptBatch batch = kept_batch(config, 1);
  const auto text = [&](const LayoutChoice& choice) {
    return make_layout(config, choice, batch).layout.text();
  };
  EXPECT_EQ(text({.micro_batch = 4}), "one rank; 4 x 4");
  EXPECT_EQ(text({.tensor = 2,
                  .pipeline = 2,
                  .data = 2,
                  .micro_batch = 1,
                  .zero_level = 1,
                  .sequence_parallel = true,
                  .layers = {5, 3}}),
            "tp 2, sp, pp 2 (5, 3), dp 2, z1; 1 x 8");
}

TEST(PlannedLayouts, BalanceTheHead) {
  EXPECT_THAT(balanced_layers(12, 2, 4), ElementsAre(8, 4));
  EXPECT_THAT(balanced_layers(8, 4, 2.2), ElementsAre(2, 3, 3, 0));
  EXPECT_THAT(balanced_layers(8, 4, 0), IsEmpty());  // even is balanced
}

}  // namespace
}  // namespace tapestry::planning
