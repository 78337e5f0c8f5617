// Keys of hyper-connections, and what cannot be had beside them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/model_matrices.h"
#include "tests/parallel_core/model_families.h"

namespace tapestry {
namespace hyper_connections_test {
namespace {

using testing::gemma4_moe;
using ::testing::HasSubstr;
using testing::joined;
using testing::kModel;
using testing::kMoe;
using testing::llama;
using testing::mixtral;
using testing::Overrides;
using testing::small_config;

const Overrides kOn = {kModel + "enable_hyper_connections=True"};

std::string refusal(const Overrides& overrides) {
  try {
    small_config(overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(HyperConnectionKeys, AreTheModels) {
  EXPECT_EQ(residual_streams(small_config().model_config), 1);
  const TransformerConfig usual = small_config(kOn).model_config;
  EXPECT_EQ(residual_streams(usual), 4);
  EXPECT_EQ(usual.hyper_connections.sinkhorn_iterations, 20);
  EXPECT_EQ(usual.hyper_connections.init_gating_factor, 0.01);
  EXPECT_EQ(usual.hyper_connections.norm_epsilon, 1e-6);
  const TransformerConfig own =
      small_config(
          joined(kOn, {kModel + "num_residual_streams=2", kModel + "mhc_sinkhorn_iterations=7",
                       kModel + "mhc_init_gating_factor=0.5", kModel + "mhc_layernorm_epsilon=0"}))
          .model_config;
  EXPECT_EQ(residual_streams(own), 2);
  EXPECT_EQ(own.hyper_connections.sinkhorn_iterations, 7);
  EXPECT_EQ(own.hyper_connections.init_gating_factor, 0.5);
  EXPECT_EQ(own.hyper_connections.norm_epsilon, 0);
}

TEST(HyperConnectionKeys, SayNothingWithoutStreams) {
  std::string notes;
  for (const std::string& note :
       small_config({kModel + "num_residual_streams=3", kModel + "mhc_sinkhorn_iterations=3",
                     kModel + "mhc_init_gating_factor=0.2", kModel + "mhc_layernorm_epsilon=0.1"})
           .notes) {
    notes += note + "\n";
  }
  for (const char* key : {"num_residual_streams", "mhc_sinkhorn_iterations",
                          "mhc_init_gating_factor", "mhc_layernorm_epsilon"}) {
    EXPECT_THAT(notes,
                HasSubstr(std::string(key) + ": has no effect without enable_hyper_connections"));
  }
}

TEST(HyperConnectionKeys, HaveBounds) {
  for (const char* value : {"num_residual_streams=0", "num_residual_streams=17",
                            "mhc_sinkhorn_iterations=0", "mhc_layernorm_epsilon=-1"}) {
    const std::string name = std::string(value).substr(0, std::string(value).find('='));
    EXPECT_THAT(refusal(joined(kOn, {kModel + value})), HasSubstr(name));
  }
}

TEST(HyperConnectionKeys, RefuseWhatHasOneStream) {
  const std::string key = "model_config.enable_hyper_connections: is True, but ";
  for (const char* placement : {"parallel", "parallel_one_norm"}) {
    EXPECT_THAT(refusal(llama(joined(kOn, {kModel + "norm_placement=" + placement}))),
                HasSubstr(key + "norm_placement is " + placement + ", where both blocks read"));
  }
  EXPECT_THAT(refusal(llama(joined(kOn, {kModel + "apply_residual_connection_post_norm=True"}))),
              HasSubstr(key + "apply_residual_connection_post_norm adds blocks"));
  EXPECT_THAT(refusal(llama(joined(kOn, {kModel + "per_layer_embedding_size=6"}))),
              HasSubstr(key + "per_layer_embedding_size is above 0"));
  EXPECT_THAT(refusal(llama(joined(kOn, {kModel + "layer_scalar=True"}))),
              HasSubstr(key + "layer_scalar multiplies a single stream"));
  EXPECT_THAT(refusal(gemma4_moe(joined(kOn, {kModel + "hf_model_type=null"}))),
              HasSubstr(key + "moe_beside_dense has a router"));
  EXPECT_THAT(refusal(mixtral(joined(kOn, {kMoe + "upcycle_from=/dense"}))),
              HasSubstr(key + "a mixture is made of a dense model"));
  for (const char* placement : {"pre", "post", "sandwich"}) {
    EXPECT_EQ(refusal(llama(joined(kOn, {kModel + "norm_placement=" + placement}))), "");
  }
}

}  // namespace
}  // namespace hyper_connections_test
}  // namespace tapestry
