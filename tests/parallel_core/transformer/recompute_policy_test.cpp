#include "parallel_core/transformer/recompute_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parallel_core/small_model.h"
#include "tests/says.h"

namespace tapestry {
namespace recompute_policy_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Overrides;

const Overrides kGated = {"model_config.hidden_act=swiglu", "model_config.normalization=RMSNorm",
                          "model_config.position_embedding_type=rope"};

std::vector<LayerOpName> names(const Overrides& overrides = kGated) {
  return layer_op_names(testing::small_config(overrides).model_config);
}

LayerOpSet set_of(std::initializer_list<LayerOp> ops) {
  LayerOpSet set;
  for (const LayerOp op : ops) {
    set.set(static_cast<size_t>(op));
  }
  return set;
}

TEST(MatchPattern, WholePartsOfNames) {
  const auto match = [](const std::string& pattern) { return match_pattern(pattern, names()); };
  EXPECT_EQ(match("feed_forward\\.mul").ops, set_of({LayerOp::kActivation}));
  EXPECT_EQ(match("feed_forward\\.w1\\.activation\\.silu").ops, set_of({LayerOp::kActivation}));
  EXPECT_THAT(match(".*\\.norm").names, ElementsAre("attention_norm.norm", "ffn_norm.norm"));
  EXPECT_THAT(match("feed_forward\\.w[13]\\.matmul").names,
              ElementsAre("feed_forward.w1.matmul", "feed_forward.w3.matmul"));
  EXPECT_THAT(match("add").names, ElementsAre("add"));
  // No part is matched in pieces, none stands for two.
  EXPECT_THAT(match("feed_forward\\.mu").names, IsEmpty());
  EXPECT_THAT(match(".*silu").names, IsEmpty());
  EXPECT_THAT(match("feed_forward\\.silu").names, IsEmpty());
}

// One product here: each of its names means all of it.
TEST(MatchPattern, ProductsThatAreFusedHaveAllTheirNames) {
  for (const char* pattern : {"feed_forward\\.w1\\.matmul", "feed_forward\\.w3\\.matmul",
                              "feed_forward\\.w3", "mlp\\.linear_fc1\\.matmul", "mlp\\.mapping"}) {
    EXPECT_EQ(match_pattern(pattern, names()).ops, set_of({LayerOp::kMapping})) << pattern;
  }
  for (const char* pattern : {"attention\\.wq", "attention\\.wk\\.matmul", "attention\\.wv",
                              "self_attention\\.linear_qkv"}) {
    EXPECT_EQ(match_pattern(pattern, names()).ops, set_of({LayerOp::kQkv})) << pattern;
  }
}

TEST(MatchPattern, AModuleIsAllButWhatItEndsWith) {
  const PatternMatch match = match_pattern("feed_forward", names());
  EXPECT_THAT(match.names, IsEmpty());
  EXPECT_THAT(match.modules, ElementsAre("feed_forward"));
  EXPECT_EQ(match.module_ops, set_of({LayerOp::kMapping, LayerOp::kActivation}));
  EXPECT_EQ(match_pattern("feed_forward\\.w1", names()).module_ops, set_of({LayerOp::kMapping}));
  EXPECT_EQ(match_pattern("attention", names()).module_ops,
            set_of({LayerOp::kQkv, LayerOp::kRotary, LayerOp::kCoreAttention}));
}

TEST(MatchPattern, OtherProgramsNamesCountWhereNoneOfTheGuidesDo) {
  EXPECT_EQ(match_pattern("input_layernorm\\.norm", names()).ops, set_of({LayerOp::kInputNorm}));
  EXPECT_EQ(match_pattern("self_attention\\.core_attention", names()).ops,
            set_of({LayerOp::kCoreAttention}));
  EXPECT_EQ(match_pattern("mlp\\.activation_func\\.gelu", names({})).ops,
            set_of({LayerOp::kActivation}));
  EXPECT_EQ(match_pattern("feed_forward\\.mapping\\.activation\\.gelu", names({})).ops,
            set_of({LayerOp::kActivation}));
  EXPECT_EQ(match_pattern("feed_forward\\.mul", names({})).ops, set_of({LayerOp::kActivation}));
}

TEST(LayerOpNames, AreThoseThatTheModelHas) {
  const auto has = [](const Overrides& overrides, const std::string& path) {
    for (const LayerOpName& name : names(overrides)) {
      if (name.path == path) {
        return true;
      }
    }
    return false;
  };
  EXPECT_TRUE(has(kGated, "attention.apply_rotary_emb"));
  EXPECT_FALSE(has({}, "attention.apply_rotary_emb"));
  EXPECT_FALSE(has({}, "attention.q_norm.norm"));
  EXPECT_TRUE(has({"model_config.qk_layernorm=True"}, "attention.q_norm.norm"));
  EXPECT_TRUE(has({"model_config.use_sandwich_norm=True"}, "ffn_post_norm.norm"));
}

TransformerConfig guide(const std::string& recompute) {
  Overrides overrides = kGated;
  overrides.push_back("parallel_config.recompute_config=" + recompute);
  return testing::small_config(overrides).model_config;
}

TEST(LayerRecomputeText, HasTheGuidesWords) {
  EXPECT_EQ(
      layer_recompute_text(guide(
          "{recompute: [1], select_recompute: {'feed_forward\\.w1\\.activation\\.silu': True, "
          "'feed_forward\\.mul': True, 'feed_forward\\.w1\\.matmul': [2]}, "
          "select_comm_recompute: ['ffn_norm\\.norm', 'attention_norm\\.norm'], "
          "select_recompute_exclude: ['attention\\.wo']}")),
      "Set full recompute at layer 0\n"
      "Set select recompute exclude at layer 0: attention.wo\n"
      "Set select recompute on at layer 1: feed_forward.w1.activation.silu, "
      "feed_forward.mul, feed_forward.w1.matmul\n"
      "Set select comm recompute on at layer 1: ffn_norm.norm, attention_norm.norm\n"
      "Set select recompute exclude at layer 1: attention.wo");
  EXPECT_EQ(layer_recompute_text(testing::small_config().model_config), "");
}

TEST(PatternRemarks, OfPatternsWithoutEffect) {
  const PatternRemarks remarks = pattern_remarks(
      guide("{select_recompute: ['feed_forward\\.mull', 'attention\\.wo', 'feed_forward'], "
            "select_comm_recompute: ['ffn_norm'], select_recompute_exclude: ['attention'], "
            "select_comm_recompute_exclude: ['attention\\.wq']}"));
  ASSERT_EQ(remarks.warnings.size(), 2U);
  EXPECT_THAT(remarks.warnings[0], Says("select_recompute: ... 'feed_forward\\.mull' ... layer; "
                                        "there are ... attention_norm.norm, attention.wq,"));
  EXPECT_THAT(remarks.warnings[1], Says("select_comm_recompute_exclude: ... 'attention\\.wq' ... "
                                        "layer; there are ... attention_norm.norm, ffn_norm.norm"));
  ASSERT_EQ(remarks.notes.size(), 2U);
  EXPECT_THAT(remarks.notes[0],
              Says("select_comm_recompute: ... 'ffn_norm' ... ffn_norm, ... and has no effect"));
  EXPECT_THAT(remarks.notes[1], HasSubstr("select_recompute_exclude: the pattern 'attention'"));
}

TEST(RecomputePolicy, ExclusionsHoldInWholeLayersToo) {
  const TransformerConfig config = guide(
      "{recompute: True, select_recompute_exclude: ['attention\\.core_attention'], "
      "select_comm_recompute_exclude: True, mp_comm_recompute: False}");
  const RecomputePolicy policy =
      recompute_policy(config.layer_recompute.at(0), layer_op_names(config));
  EXPECT_TRUE(policy.recomputes(LayerOp::kQkv));
  EXPECT_FALSE(policy.recomputes(LayerOp::kCoreAttention));
  EXPECT_TRUE(policy.keeps(LayerOp::kCoreAttention));
  EXPECT_FALSE(policy.keeps(LayerOp::kActivation));
  EXPECT_TRUE(policy.keeps_gathered(LayerOp::kInputNorm));
  EXPECT_FALSE(policy.repeats_communication);
}

}  // namespace
}  // namespace recompute_policy_test
}  // namespace tapestry
