// What a step's mixtures leave in metrics.jsonl and in the log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/json.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/training/step/metrics.h"
#include "parallel_core/training/watch/expert_log.h"
#include "tests/parallel_core/transformer/moe/mixture_testing.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

MoEStepStatistics statistics() {
  MoEStepStatistics out{.aux_loss = 0.25};
  out.layers[3] = {.tokens_per_expert = {50, 25, 15, 10},
                   .dropped_per_expert = {12, 0, 0, 0},
                   .smallest_router_gap = 0.5};
  return out;
}

TEST(ExpertLog, LinesShowRealDropsAndLoads) {
  EXPECT_THAT(
      expert_lines(statistics()),
      ElementsAre("layer: 3, drop_rate: 0.12000", "layer: 3, expert_load: max 2.000, min 0.400"));
}

TEST(ExpertLog, IsThereWhereItIsAskedFor) {
  for (const bool asked : {false, true}) {
    AllConfig config = testing::mixture_config();
    config.moe_config.callback_moe_droprate = asked;
    config.tensorboard.log_expert_load_to_tensorboard = asked;
    FinishedStep step;
    step.result.moe = statistics();
    ExpertLog(config).after(step);
    EXPECT_EQ(step.lines.size(), asked ? 2U : 0U);
    if (asked) {
      EXPECT_EQ(step.record.scalars.at("expert_load/3/ep_0"), 0.5);
    } else {
      EXPECT_THAT(step.record.scalars, IsEmpty());
    }
  }
}

TEST(ExpertMetrics, HaveTheReferencesForm) {
  StepResult result;
  EXPECT_FALSE(nlohmann::json::parse(metrics_line({}, result)).contains("moe"));
  result.moe = statistics();
  result.moe->layers[4] = result.moe->layers[3];
  result.moe->layers[4].smallest_group_gap = 0.125;
  result.moe->layers[4].expert_bias = {1, -1, 0, 0.5};
  const auto line = nlohmann::json::parse(metrics_line({}, result));
  EXPECT_EQ(line["aux_loss"], 0.25);
  EXPECT_EQ(line["moe"]["layers.3.moe"],
            nlohmann::json::parse(R"({"tokens_per_expert": [50, 25, 15, 10],
                "dropped_per_expert": [12, 0, 0, 0], "smallest_router_gap": 0.5,
                "smallest_capacity_gap": 1e9})"));
  EXPECT_EQ(line["moe"]["layers.4.moe"]["smallest_group_gap"], 0.125);
  EXPECT_EQ(line["moe"]["layers.4.moe"]["expert_bias"], nlohmann::json::parse("[1, -1, 0, 0.5]"));
}

TEST(ExpertEstimate, CountsParametersAsTheModelDoes) {
  const auto counts_as_the_model = [](const AllConfig& config) {
    EXPECT_EQ(parameter_count(config.model_config), get_model(config)->num_parameters());
  };
  counts_as_the_model(testing::mixture_config());
  counts_as_the_model(testing::mixture_config({}, [](MoEConfig& moe) {
    moe.moe_shared_expert_intermediate_size = 20;
    moe.use_shared_expert_gating = true;
    moe.moe_layer_freq = {2};
  }));
  const AllConfig swiglu = testing::mixture_config(
      {"model_config.hidden_act=swiglu", "model_config.add_bias_linear=False"});
  counts_as_the_model(swiglu);
  // Two of the four experts of each layer rest.
  EXPECT_EQ(parameter_count(swiglu.model_config) - active_parameter_count(swiglu.model_config),
            2 * 2 * 3 * 32 * 24);
}

TEST(ExpertEstimate, MemoryOfExpertsIsDivided) {
  // So many tokens that their activations are what a run needs most for.
  AllConfig config = testing::mixture_config({"dataset_config.batch_size=16384"});
  const MemoryEstimate whole = estimate_memory(config, 2);
  EXPECT_EQ(whole.unbalanced, 0);
  config.parallel_config.expert_model_parallel_size = 2;
  const MemoryEstimate half = estimate_memory(config, 2);
  EXPECT_EQ(half.expert_parameter_count * 2, whole.expert_parameter_count);
  EXPECT_EQ(whole.parameters - half.parameters, half.expert_parameter_count * 4);
  EXPECT_GT(half.unbalanced, 0);
  EXPECT_EQ(worst_expert_load(config), 2);  // both choices of every token are one rank's
  config.model_config.moe.moe_expert_capacity_factor = 1.25;
  EXPECT_EQ(worst_expert_load(config), 1.25);
  config.parallel_config.expert_model_parallel_size = 4;
  config.model_config.moe.moe_expert_capacity_factor = std::nullopt;
  EXPECT_EQ(worst_expert_load(config), 2);  // a rank has one expert, a token two choices
}

}  // namespace
}  // namespace tapestry
