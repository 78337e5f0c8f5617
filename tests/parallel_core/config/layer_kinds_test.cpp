// Layers that differ from each other: what their keys mean, and which values make no sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel_core/config/init_configs.h"
#include "tests/parallel_core/model_families.h"

namespace tapestry {
namespace layer_kinds_test {
namespace {

using testing::gemma4;
using testing::gemma4_moe;
using ::testing::HasSubstr;
using testing::kModel;
using testing::kMoe;
using testing::Overrides;
using testing::small_config;

std::string refusal(const Overrides& overrides) {
  try {
    small_config(overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(LayerKinds, HaveTheirOwnSizes) {
  const TransformerConfig c =
      small_config(gemma4({kModel + "full_attention_num_query_groups=4"})).model_config;
  EXPECT_EQ(kv_channels(c, 0), 8);
  EXPECT_EQ(kv_channels(c, 1), 12);
  EXPECT_EQ(num_query_groups(c, 0), 2);
  EXPECT_EQ(num_query_groups(c, 3), 4);
  EXPECT_EQ(ffn_hidden_size(c, 2), 48);
  EXPECT_EQ(ffn_hidden_size(c, 3), 96);
  EXPECT_EQ(keys_from(c, 2), std::nullopt);
  EXPECT_EQ(keys_from(c, 3), 1);
  EXPECT_TRUE(gives_keys(c, 1));
  EXPECT_FALSE(gives_keys(c, 0) || gives_keys(c, 3));
  EXPECT_EQ(rotated_channels(c, 0), 8);
  EXPECT_EQ(rotated_channels(c, 1), 12);
  EXPECT_EQ(attention_scale(c, 1), 1.0);
  EXPECT_EQ(per_layer_vocab_size(c), 33);
  EXPECT_TRUE(has_experts_beside_dense(small_config(gemma4_moe()).model_config, 0));
}

TEST(LayerKinds, KeysOfOneKindSayNothingWithoutIt) {
  const AllConfig config =
      small_config({kModel + "full_attention_kv_channels=12", kModel + "use_double_wide_mlp=True",
                    kModel + "per_layer_vocab_size=40"});
  EXPECT_EQ(config.model_config.full_attention_kv_channels, std::nullopt);
  std::string notes;
  for (const std::string& note : config.notes) {
    notes += note + "\n";
  }
  EXPECT_THAT(notes, HasSubstr("full_attention_kv_channels: has no effect without layer_types"));
  EXPECT_THAT(notes, HasSubstr("use_double_wide_mlp: has no effect without num_kv_shared_layers"));
  EXPECT_THAT(notes, HasSubstr("per_layer_vocab_size: has no effect without "
                               "per_layer_embedding_size"));
}

TEST(LayerKinds, SizesThatCannotBeAreRefused) {
  EXPECT_THAT(
      refusal(gemma4({kModel + "full_attention_num_query_groups=3"})),
      HasSubstr("full_attention_num_query_groups: 3 does not divide num_attention_heads 4"));
  EXPECT_THAT(refusal(gemma4({kModel + "full_attention_kv_channels=11"})),
              HasSubstr("11 channels a head give 11 rotated channels; an even number above 0"));
  EXPECT_THAT(refusal(gemma4({kModel + "per_layer_vocab_size=30"})),
              HasSubstr("per_layer_vocab_size: is 30, less than vocab_size 31"));
  EXPECT_THAT(
      refusal(gemma4({kModel + "num_attention_heads=6", kModel + "num_query_groups=3",
                      kModel + "full_attention_num_query_groups=2", kModel + "kv_channels=8",
                      "parallel_config.tensor_model_parallel_size=3"})),
      HasSubstr("full_attention_num_query_groups: 2 and tensor_model_parallel_size 3: "
                "neither divides the other"));
  EXPECT_THAT(refusal(gemma4({kModel + "multi_latent_attention=True"})),
              HasSubstr("num_kv_shared_layers: is not built with multi_latent_attention"));
}

TEST(LayerKinds, KeysNeedALayerToComeFrom) {
  EXPECT_THAT(refusal(gemma4({kModel + "num_kv_shared_layers=4"})),
              HasSubstr("num_kv_shared_layers: is 4 of 4 layers"));
  EXPECT_THAT(refusal(gemma4({kModel + "num_kv_shared_layers=3"})),
              HasSubstr("before these no layer is of the kind full_attention, as layer 1 is"));
  EXPECT_THAT(refusal(gemma4({kModel + "mtp_num_layers=1"})),
              HasSubstr("num_kv_shared_layers is above 0, and the last layer"));
  EXPECT_THAT(refusal(gemma4({kModel + "num_kv_shared_layers=0", kModel + "mtp_num_layers=1"})),
              HasSubstr("per_layer_embedding_size is above 0"));
}

// Both layers must be in one chunk.
TEST(LayerKinds, APipelineDoesNotPartKeysFromTheLayersThatHaveThem) {
  const std::string pp2 = "parallel_config.pipeline_model_parallel_size=2";
  EXPECT_THAT(refusal(gemma4({pp2})),
              HasSubstr("parts layer 3 from layer 1, whose keys and values it has "
                        "(num_kv_shared_layers 1); give parallel_config.num_layer_list with layers "
                        "1 to 3 on the last stage"));
  EXPECT_EQ(refusal(gemma4({pp2, "parallel_config.num_layer_list=[1, 3]"})), "");
  EXPECT_THAT(refusal(gemma4({pp2, "parallel_config.num_layer_list=[3, 1]"})),
              HasSubstr("num_layer_list: parts layer 3 from layer 1"));
  EXPECT_EQ(refusal(gemma4_moe({pp2})), "");
}

TEST(LayerKinds, ExpertsBesideADenseMlpNeedTheirNorms) {
  EXPECT_THAT(refusal(gemma4_moe({kModel + "norm_placement=pre"})),
              HasSubstr("moe_beside_dense: is True, which needs norm_placement: sandwich"));
  EXPECT_THAT(refusal(gemma4_moe({kModel + "normalization=LayerNorm"})),
              HasSubstr("which needs normalization: RMSNorm"));
  EXPECT_THAT(refusal(gemma4_moe({kMoe + "moe_shared_expert_intermediate_size=8"})),
              HasSubstr("names a second MLP that every token sees; keep one"));
  EXPECT_THAT(refusal(gemma4_moe({kMoe + "upcycle_from=/dense"})),
              HasSubstr("upcycle_from makes experts in place of the dense MLP; keep one"));
}

}  // namespace
}  // namespace layer_kinds_test
}  // namespace tapestry
