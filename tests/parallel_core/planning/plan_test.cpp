#include "parallel_core/planning/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/planning/planned_run.h"
#include "tests/message_of.h"
#include "tests/parallel_core/planning/planning_testing.h"
#include "tests/says.h"

namespace tapestry::planning {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr MessageCost kFree{};
constexpr MessageCost kDear{.latency = 0.1};

Plan plan_of(const AllConfig& config, const PlanOptions& asked, const MessageCost& cost) {
  return make_plan(config, asked, even_times, {.host = cost, .network = cost});
}

const ModelParallelConfig& winner(const Plan& plan) {
  return plan.fitting.front().layout.config.parallel_config;
}

// Where each message is dear, the fewest are best: one all-reduce of gradients a step.
TEST(Plan, TakesDataParallelismWhereMessagesAreDear) {
  const Plan plan = plan_of(planned_config(), asked_of(4), kDear);
  EXPECT_EQ(plan.ranks, 4);
  EXPECT_EQ(plan.fitting.front().layout.data_parallel_size, 4);
  for (const RankedLayout& ranked : plan.fitting) {
    EXPECT_GE(1.02 * ranked.time.seconds, plan.fitting.front().time.seconds);
    EXPECT_EQ(global_batch_size(ranked.layout.config, ranked.layout.data_parallel_size), 16);
  }
}

// A batch of one sequence can only be shared out inside of the model.
TEST(Plan, DividesTheModelWhereTheBatchCannotBe) {
  const AllConfig config =
      planned_config({"dataset_config.batch_size=1", "dataset_config.micro_batch_num=1"});
  const Plan plan = plan_of(config, asked_of(4), kFree);
  const ModelParallelConfig& p = winner(plan);
  EXPECT_EQ(p.tensor_model_parallel_size * p.context_parallel_size, 4);
  EXPECT_EQ(p.pipeline_model_parallel_size, 1);  // whose stages would wait for each other
}

TEST(Plan, UsesFewerRanksThanThereAreAndSaysSo) {
  const AllConfig config = planned_config({"model_config.num_layers=2"});
  const Plan plan = plan_of(config, asked_of(7), kFree);
  EXPECT_LT(plan.ranks, 7);
  EXPECT_GE(plan.ranks, 4);
  EXPECT_EQ(plan.fitting.front().layout.ranks(), plan.ranks);
  EXPECT_EQ(ranks_line(plan), concat("plan: ranks=", plan.ranks, "\n"));
  EXPECT_THAT(plan_file(plan), HasSubstr(concat("# plan: ranks=", plan.ranks, " of 7")));
}

TEST(Plan, RespectsMemory) {
  const AllConfig config = planned_config();
  PlanOptions asked = asked_of(4);
  const Plan all = plan_of(config, asked, kFree);
  int64_t least = all.fitting.front().memory;
  int64_t most = least;
  for (const RankedLayout& ranked : all.fitting) {
    least = std::min(least, ranked.memory);
    most = std::max(most, ranked.memory);
  }
  asked.memory = (least + most) / 2;
  const Plan some = plan_of(config, asked, kFree);
  EXPECT_FALSE(some.fitting.empty());
  for (const RankedLayout& ranked : some.fitting) {
    EXPECT_LE(ranked.memory, asked.memory);
    EXPECT_EQ(ranked.memory,
              estimate_memory(ranked.layout.config, ranked.layout.data_parallel_size).peak());
  }
  for (const RankedLayout& ranked : some.too_large) {
    EXPECT_GT(ranked.memory, asked.memory);
  }
  asked.memory = 1000;
  const Plan none = plan_of(config, asked, kFree);
  EXPECT_THAT(none.fitting, IsEmpty());
  EXPECT_THAT(plan_table(none, 3), Says("memory: ... over"));
}

TEST(Plan, RecomputesWhereMemoryForcesIt) {
  // Most of its memory is activations.
  const AllConfig config =
      planned_config({"model_config.seq_length=512", "model_config.hidden_size=128",
                      "model_config.ffn_hidden_size=512"});
  PlanOptions asked = asked_of(1);
  const Plan plain = plan_of(config, asked, kFree);
  EXPECT_THAT(plan_table(plain, 50), Not(HasSubstr("recompute")));
  asked.memory = plain.fitting.front().memory;
  for (const RankedLayout& ranked : plain.fitting) {
    asked.memory = std::min(asked.memory, ranked.memory);
  }
  asked.memory -= 1;
  const Plan tight = plan_of(config, asked, kFree);
  ASSERT_FALSE(tight.fitting.empty());
  EXPECT_THAT(tight.fitting.front().layout.text(), HasSubstr("recompute"));
}

// Times that do not differ leave the micro-batches as they are.
TEST(Plan, ChangesLittleWhereThatCostsLittle) {
  const Plan plan = plan_of(planned_config(), asked_of(4), kFree);
  EXPECT_EQ(plan.fitting.front().layout.config.dataset_config.batch_size, 2);
  EXPECT_EQ(zero_level(plan.fitting.front().layout.config), 0);
}

// Over several hosts gradients go while the backward pass runs, whatever the file says of it.
TEST(Plan, OverSeveralHostsOverlaps) {
  PlanOptions asked = asked_of(4);
  asked.hosts = 4;
  asked.cores = 1;
  const AllConfig config = planned_config({"training_config.use_distributed_optimizer=True"});
  const Plan plan = plan_of(config, asked, kFree);
  for (const RankedLayout& ranked : plan.fitting) {
    EXPECT_EQ(ranked.layout.config.parallel_config.tensor_model_parallel_size, 1);
    EXPECT_EQ(ranked.layout.config.training_config.overlap_grad_reduce,
              ranked.layout.data_parallel_size > 1)
        << ranked.layout.text();
  }
  EXPECT_EQ(plan.fitting.front().layout.data_parallel_size, 4);
}

// Better times move only what they are given for; the others are scaled alike.
TEST(Plan, IsRefined) {
  Plan plan = plan_of(planned_config(), asked_of(4), kFree);
  const std::string first = plan.fitting.front().layout.text();
  refine(plan, 10,
         [&](const Layout& layout) -> std::optional<ModelTimes> {
           if (layout.text() != first) {
             return even_times(layout);
           }
           ModelTimes slow = even_times(layout);
           for (PassTime& layer : slow.layers) {
             layer = layer * 100;
           }
           return slow;
         },
         {.host = kFree, .network = kFree});
  EXPECT_EQ(plan.fitting.back().layout.text(), first);
}

TEST(Plan, OfTheConfigurationsOwnLayout) {
  const AllConfig config = planned_config({"parallel_config.tensor_model_parallel_size=2"});
  PlanOptions asked = asked_of(4);
  asked.data_parallel_size = 2;
  const Plan plan =
      plan_as_configured(config, asked, even_times, {.host = kFree, .network = kFree});
  ASSERT_EQ(plan.fitting.size(), 1);
  EXPECT_EQ(plan.fitting.front().layout.text(), "tp 2, dp 2; 2 x 8");
  EXPECT_NEAR(plan.fitting.front().time.seconds, 8 * 8 * 3e-3, 1e-6);
  asked.ranks = 3;
  EXPECT_THAT(message_of<ValueError>([&] { plan_as_configured(config, asked, even_times, {}); }),
              Says("tp 2, dp 2 ... 4 ranks, not of 3"));
}

TEST(Plan, GivesSectionsThatMakeTheWinner) {
  const AllConfig config = planned_config();
  const Plan plan = plan_of(config, asked_of(4), kDear);
  const AllConfig whole = init_configs_from_text(plan_file(plan), "plan.yaml");
  EXPECT_TRUE(whole.same_values(plan.fitting.front().layout.config));
  EXPECT_EQ(whole.parallel_config.data_parallel_size, 4);
  EXPECT_THAT(plan_sections(plan, config), HasSubstr("parallel_config:\n"));
  EXPECT_THAT(plan_csv(plan, config), HasSubstr("parallel_config.data_parallel_size=4"));
}

TEST(PlannedRun, KnowsItsBatch) {
  const AllConfig plain = planned_config();
  EXPECT_EQ(planned_run(plain, 6).data_parallel_size, 6);
  const AllConfig pairs = planned_config({"parallel_config.tensor_model_parallel_size=2"});
  EXPECT_EQ(planned_run(pairs, 6).data_parallel_size, 3);
  EXPECT_THAT(message_of<ValueError>([&] { planned_run(pairs, 3); }),
              Says("needs 2 ranks ... --ranks N"));
  EXPECT_EQ(
      planned_run(planned_config({"parallel_config.data_parallel_size=5"}), 6).data_parallel_size,
      5);
  EXPECT_EQ(data_parallel_size_of("dp 12 | pp 1 | tp 2"), 12);
  EXPECT_EQ(data_parallel_size_of("pp 1"), std::nullopt);
  EXPECT_EQ(data_parallel_size_of("dp x"), std::nullopt);
}

}  // namespace
}  // namespace tapestry::planning
