// Faults of all kinds, planted in a step: each is named by op, module, pass, rank, parameter and
// token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/diagnosis/autopsy/planted_faults.h"

namespace tapestry {
namespace plants_test {
namespace {

using autopsy::Fault;
using autopsy::FaultKind;
using ::testing::EndsWith;
using testing::Examined;
using ::testing::HasSubstr;
using testing::Overrides;
using testing::PlantedStep;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const Overrides kRope = {"model_config.position_embedding_type=rope",
                         "model_config.normalization=RMSNorm"};

Overrides with(const Overrides& more) { return testing::joined(kRope, more); }

// What all ranks agree on; the step is looked into once, and changes nothing.
StepFindings found(const PlantedStep& planted) {
  const std::vector<Examined> all = testing::examine_planted(planted);
  for (const Examined& rank : all) {
    EXPECT_EQ(rank.anomalies, 1);
    if (!rank.findings) {
      ADD_FAILURE() << "a rank has not looked into the step";
      return {};
    }
    EXPECT_EQ(autopsy::fault_json(rank.findings->fault),
              autopsy::fault_json(all.front().findings->fault));
    EXPECT_EQ(rank.findings->transient, all.front().findings->transient);
  }
  return *all.front().findings;
}

TEST(Plants, AnOverflowingRowOfTheEmbedding) {
  const Fault fault =
      found({.overrides = kRope,
             .spoil_weights =
                 [](nn::Module& model) {
                   EXPECT_TRUE(testing::set_weight(model, "tok_embeddings.weight", 7, 3e38F));
                 },
             .spoil_data =
                 [](std::vector<data::Batch>& batches) {
                   for (int64_t& token : batches[0].tokens) {
                     token = token == 7 ? 8 : token;
                   }
                   batches[0].tokens[8 + 3] = 7;
                 }})
          .fault;
  EXPECT_EQ(fault.kind, FaultKind::kMade);
  EXPECT_EQ(fault.op.pass, "forward");
  EXPECT_EQ(fault.parameter, "tok_embeddings.weight");
  EXPECT_EQ(fault.parameter_row, 7);
  EXPECT_TRUE(fault.parameter_is_suspect);
  EXPECT_EQ(fault.row, 1);
  EXPECT_EQ(fault.position, 3);
  EXPECT_EQ(fault.token, 7);
  EXPECT_EQ(fault.sample, 1);
}

TEST(Plants, AnInfiniteWeight) {
  const Fault fault =
      found({.overrides = kRope,
             .spoil_weights =
                 [](nn::Module& model) {
                   EXPECT_TRUE(testing::set_weight(model, "layers.1.feed_forward.w_up.weight", 5,
                                                   kInfinity, 2));
                 }})
          .fault;
  EXPECT_EQ(fault.kind, FaultKind::kParameter);
  EXPECT_EQ(fault.op.op, "linear");
  EXPECT_THAT(fault.op.module, HasSubstr("layers.1.mlp"));
  EXPECT_EQ(fault.parameter, "layers.1.feed_forward.w_up.weight");
  EXPECT_EQ(fault.parameter_row, 5);
}

TEST(Plants, ANanInALayersWeight) {
  const Fault fault = found({.overrides = kRope,
                             .spoil_weights =
                                 [](nn::Module& model) {
                                   EXPECT_TRUE(testing::set_weight(
                                       model, "layers.0.attention.wo.weight", 4, kNan, 1));
                                 }})
                          .fault;
  EXPECT_EQ(fault.kind, FaultKind::kParameter);
  EXPECT_THAT(fault.op.module, HasSubstr("layers.0.attention"));
  EXPECT_EQ(fault.parameter, "layers.0.attention.wo.weight");
  EXPECT_EQ(fault.parameter_row, 4);
}

TEST(Plants, AHugeGainOfANorm) {
  const Fault fault =
      found({.overrides = kRope,
             .spoil_weights =
                 [](nn::Module& model) {
                   EXPECT_TRUE(testing::set_weight(model, "layers.1.ffn_norm.weight", 6, 3.3e38F));
                 }})
          .fault;
  EXPECT_EQ(fault.kind, FaultKind::kMade);
  EXPECT_THAT(fault.op.module, HasSubstr("layers.1."));
  EXPECT_EQ(fault.parameter, "layers.1.ffn_norm.weight");
  EXPECT_TRUE(fault.parameter_is_suspect);
}

TEST(Plants, AnEmptyLossMask) {
  const Fault fault =
      found({.overrides = kRope,
             .spoil_data =
                 [](std::vector<data::Batch>& batches) {
                   std::fill(batches[0].loss_mask.begin(), batches[0].loss_mask.end(), 0.0F);
                 }})
          .fault;
  EXPECT_EQ(fault.kind, FaultKind::kNoTokens);
  EXPECT_EQ(fault.samples, (std::vector<int64_t>{0, 1}));
}

TEST(Plants, OverflowInFloat16WithoutAScale) {
  const Fault fault =
      found({.overrides = with({"training_config.fp16=True", "training_config.loss_scale=1"}),
             .spoil_weights =
                 [](nn::Module& model) {
                   for (int64_t column = 0; column < 32; ++column) {
                     EXPECT_TRUE(testing::set_weight(model, "layers.1.attention.wv.weight", 3,
                                                     column % 2 == 0 ? 30000.0F : -30000.0F,
                                                     column));
                   }
                 }})
          .fault;
  EXPECT_EQ(fault.kind, FaultKind::kMade);
  EXPECT_EQ(fault.op.op, "linear");
  EXPECT_THAT(fault.op.module, EndsWith("layers.1.attention.qkv_proj"));
  EXPECT_EQ(fault.parameter, "layers.1.attention.wv.weight");
  EXPECT_EQ(fault.parameter_row, 3);
}

TEST(Plants, ATensorParallelRank) {
  const Fault fault =
      found({.overrides = with({"parallel_config.tensor_model_parallel_size=2"}),
             .sizes = {.tensor_model_parallel_size = 2},
             .ranks = 2,
             .spoil_weights =
                 [](nn::Module& model) {
                   if (RankContext::current().rank() == 1) {
                     EXPECT_TRUE(testing::set_weight(model, "layers.0.feed_forward.w_up.weight", 0,
                                                     kInfinity, 0));
                   }
                 }})
          .fault;
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.parameter, "layers.0.feed_forward.w_up.weight");
  EXPECT_EQ(fault.parameter_row, 24);  // the first of the second half
  EXPECT_THAT(fault.op.module, HasSubstr("layers.0.mlp"));
}

TEST(Plants, AStageOfAPipeline) {
  const Fault fault =
      found({.overrides = with({"parallel_config.pipeline_model_parallel_size=2",
                                "dataset_config.micro_batch_num=2"}),
             .sizes = {.pipeline_model_parallel_size = 2},
             .ranks = 2,
             .micro_batches = 2,
             .spoil_weights =
                 [](nn::Module& model) {
                   testing::set_weight(model, "layers.1.attention.wq.weight", 2, kNan, 3);
                 }})
          .fault;
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.micro_batch, 0);
  EXPECT_EQ(fault.op.pass, "forward");
  EXPECT_EQ(fault.parameter, "layers.1.attention.wq.weight");
}

// The other ranks only receive it, in the forward passes of a later stage and in backward ones.
TEST(Plants, TheFirstStageOfAPipeline) {
  const Fault fault = found({.overrides = with({"parallel_config.pipeline_model_parallel_size=2",
                                                "dataset_config.micro_batch_num=2"}),
                             .sizes = {.pipeline_model_parallel_size = 2},
                             .ranks = 2,
                             .micro_batches = 2,
                             .injected = {{.rank = 0,
                                           .op = "add_rms_norm",
                                           .module = "layers.0.post_attention_norm",
                                           .micro_batch = 1,
                                           .element = 40}}})
                          .fault;
  EXPECT_EQ(fault.rank, 0);
  EXPECT_EQ(fault.micro_batch, 1);
  EXPECT_EQ(fault.op.op, "add_rms_norm");
  EXPECT_EQ(fault.position, 1);
}

TEST(Plants, ADataParallelRank) {
  const Fault fault =
      found({.overrides = with({"training_config.wrap_with_ddp=True"}),
             .ranks = 2,
             .injected = {{.rank = 1, .op = "bias_gelu", .module = "layers.1.mlp", .element = 50}}})
          .fault;
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.op.op, "bias_gelu");
  EXPECT_EQ(fault.samples, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(fault.sample, 2);
  EXPECT_EQ(fault.position, 1);
}

// A rank has the chunks 1 and 2 of four: the positions 2 to 5 of eight.
TEST(Plants, AContextParallelRank) {
  const Fault fault =
      found({.overrides = with({"parallel_config.context_parallel_size=2"}),
             .sizes = {.context_parallel_size = 2},
             .ranks = 2,
             .injected = {{.rank = 1, .op = "bias_gelu", .module = "layers.0.mlp", .element = 0}}})
          .fault;
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.op.op, "bias_gelu");
  EXPECT_THAT(fault.op.module, HasSubstr("layers.0.mlp"));
  EXPECT_EQ(fault.position, 2);
}

TEST(Plants, ARankOfZ3) {
  const Fault fault =
      found({.overrides = with({"parallel_config.zero_level=z3"}),
             .ranks = 2,
             .injected = {{.rank = 1, .op = "bias_gelu", .module = "layers.0.mlp", .element = 9}}})
          .fault;
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.op.op, "bias_gelu");
  EXPECT_THAT(fault.op.module, HasSubstr("layers.0.mlp"));
}

// The forward pass is as it should be; what is made again for backward is not.
TEST(Plants, ARecomputedValue) {
  const Fault fault = found({.overrides = with({"parallel_config.recompute_config=True"}),
                             .injected = {{.op = "linear",
                                           .module = "layers.1.mlp.mapping",
                                           .pass = OpPass::kAgain,
                                           .element = 3}}})
                          .fault;
  EXPECT_EQ(fault.kind, FaultKind::kMade);
  EXPECT_EQ(fault.op.op, "linear");
  EXPECT_EQ(fault.op.pass, "again");
  EXPECT_THAT(fault.op.module, EndsWith("layers.1.mlp.mapping"));
}

TEST(Plants, ABitThatFlipsOnceIsTransient) {
  const StepFindings findings = found({.overrides = with({"training_config.wrap_with_ddp=True"}),
                                       .ranks = 2,
                                       .injected = {{.rank = 1,
                                                     .op = "bias_gelu",
                                                     .module = "layers.0.mlp",
                                                     .element = 7,
                                                     .value = kInfinity,
                                                     .times = 1}}});
  EXPECT_TRUE(findings.transient);
  EXPECT_EQ(findings.fault.rank, 1);
  EXPECT_EQ(findings.fault.samples, (std::vector<int64_t>{2, 3}));
  EXPECT_FALSE(findings.ranks[0].changed);
  ASSERT_EQ(findings.ranks.size(), 2);
  EXPECT_TRUE(findings.ranks[1].changed);
  EXPECT_FALSE(findings.ranks[1].machine.host.empty());
  EXPECT_GE(findings.ranks[1].machine.cpu, 0);
}

TEST(Plants, ANanOfTheBackwardPassAlone) {
  const Fault fault = found({.overrides = kRope,
                             .injected = {{.op = "bias_gelu",
                                           .module = "layers.1.mlp",
                                           .pass = OpPass::kBackward,
                                           .element = 3}}})
                          .fault;
  EXPECT_EQ(fault.kind, FaultKind::kMade);
  EXPECT_EQ(fault.op.pass, "backward");
  EXPECT_EQ(fault.op.op, "bias_gelu");
  EXPECT_THAT(fault.op.module, HasSubstr("layers.1.mlp"));
  EXPECT_GE(fault.before.size(), autopsy::kOpsBefore);
}

TEST(Plants, AMicroBatchAmongSeveral) {
  const Fault fault = found({.overrides = with({"dataset_config.micro_batch_num=3"}),
                             .micro_batches = 3,
                             .injected = {{.op = "add_rms_norm",
                                           .module = "final_norm",
                                           .micro_batch = 2,
                                           .element = 32 * 13}}})
                          .fault;
  EXPECT_EQ(fault.micro_batch, 2);
  EXPECT_EQ(fault.op.op, "add_rms_norm");
  EXPECT_EQ(fault.sample, 5);
  EXPECT_EQ(fault.position, 5);
}

TEST(Plants, TheWeightsOfAnExpert) {
  const Fault fault = found({.overrides = with({"moe_config.num_experts=4"}),
                             .spoil_weights =
                                 [](nn::Module& model) {
                                   EXPECT_TRUE(testing::set_weight(
                                       model, "layers.1.moe.experts.2.w_up.weight", 1, kInfinity));
                                 }})
                          .fault;
  EXPECT_EQ(fault.kind, FaultKind::kParameter);
  EXPECT_THAT(fault.op.module, HasSubstr("layers.1."));
  EXPECT_EQ(fault.parameter, "layers.1.moe.experts.2.w_up.weight");
}

const Overrides kSpikes = {
    "training_config.loss_spike_threshold=1.2", "training_config.loss_spike_window=4",
    "dataset_config.micro_batch_num=2", "model_config.untie_embeddings_and_output_weights=True",
    "optimizer_config.learning_rate=1e-4"};

// A token that no step before has, whose row of the table is large and makes the model sure of a
// label that is not the right one.
void prepare_token(nn::Module& model) {
  for (int64_t column = 0; column < 32; ++column) {
    const float sign = column % 2 == 0 ? 1.0F : -1.0F;
    const bool table = testing::set_weight(model, "tok_embeddings.weight", 30, sign * 40, column);
    const bool head = testing::set_weight(model, "lm_head.weight", 5, sign * 0.4F, column);
    EXPECT_TRUE(table || head);  // of a pipeline, on its stage
  }
}

PlantedStep spike() {
  return {.overrides = with(kSpikes),
          .micro_batches = 2,
          .good_steps = 6,
          .hidden_token = 30,
          .prepare = prepare_token,
          .spoil_data = [](std::vector<data::Batch>& batches) {
            for (size_t i = 8; i < 16; ++i) {
              batches[1].tokens[i] = 30;
            }
          }};
}

// The last stage's own values grow most, at the loss; what one process names is on the first.
TEST(Plants, ASpikeIsNamedAlikeInAPipeline) {
  const Fault alone = found(spike()).fault;
  PlantedStep staged = spike();
  staged.overrides.push_back("parallel_config.pipeline_model_parallel_size=2");
  staged.ranks = 2;
  staged.sizes = {.pipeline_model_parallel_size = 2};
  const Fault fault = found(staged).fault;
  EXPECT_EQ(fault.kind, FaultKind::kGrew);
  EXPECT_EQ(fault.op.op, alone.op.op);
  EXPECT_EQ(fault.op.module, alone.op.module);
  EXPECT_EQ(fault.micro_batch, alone.micro_batch);
  EXPECT_EQ(fault.sample, alone.sample);
  EXPECT_NEAR(fault.growth, alone.growth, 1e-3 * alone.growth);
  EXPECT_EQ(fault.rank, 0);
}

TEST(Plants, ASpikeOfOneBadSample) {
  const StepFindings findings = found(spike());
  EXPECT_FALSE(findings.transient);
  EXPECT_EQ(findings.fault.kind, FaultKind::kGrew);
  EXPECT_EQ(findings.fault.op.op, "embedding");
  EXPECT_EQ(findings.fault.micro_batch, 1);
  EXPECT_EQ(findings.fault.sample, 27);  // the second row of the second micro-batch of step 7
  EXPECT_EQ(findings.fault.token, 30);
  EXPECT_GT(findings.fault.growth, 10);
}

}  // namespace
}  // namespace plants_test
}  // namespace tapestry
