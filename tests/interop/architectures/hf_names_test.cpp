#include "interop/architectures/hf_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/parallel_core/model_families.h"

namespace tapestry {
namespace {

using testing::kModel;
using testing::kMoe;
using testing::kQkvBias;
using testing::kUntied;
using testing::llama;
using testing::mixtral;
using testing::Overrides;
using testing::qwen2_moe;
using testing::small_config;

std::string type_of(const Overrides& overrides) {
  return file_model_type(small_config(overrides).model_config);
}

TEST(FileModelType, WhatEachFamilyCanExpress) {
  EXPECT_EQ(type_of(llama()), "llama");
  EXPECT_EQ(type_of(llama({kUntied, kModel + "kv_channels=12"})), "llama");
  EXPECT_EQ(type_of(llama({kQkvBias})), "qwen2");
  EXPECT_EQ(type_of(llama({kQkvBias, kModel + "window_size=[3, 0]"})), "qwen2");
  EXPECT_EQ(type_of(llama({kModel + "add_bias_linear=True"})), "llama");
  EXPECT_EQ(type_of(llama({kModel + "mlp_has_bias=True"})), "llama");
  EXPECT_EQ(type_of(llama({kModel + "rotary_config.seq_len_interpolation_factor=2"})), "llama");
  EXPECT_EQ(type_of({}), "gpt2");
  EXPECT_EQ(type_of({kModel + "hidden_act=fast_gelu"}), "gpt2");
  EXPECT_EQ(type_of({kModel + "max_position_embeddings=9"}), "gpt2");
  EXPECT_EQ(type_of(llama({kModel + "window_size=[3, 0]"})), "mistral");
  EXPECT_EQ(type_of({kModel + "qk_layernorm=True"}), "tapestry");
  EXPECT_EQ(type_of({kModel + "window_size=[3, 0]"}), "tapestry");
  for (const char* unlike : {"use_sandwich_norm=True", "use_final_norm=False",
                             "apply_residual_connection_post_norm=True"}) {
    EXPECT_EQ(type_of(llama({kModel + unlike})), "tapestry") << unlike;
    EXPECT_EQ(type_of({kModel + unlike}), "tapestry") << unlike;
  }
  for (const char* unlike :
       {"rotary_config.rotary_percent=0.5", "rotary_config.rotary_interleaved=True",
        "hidden_act=silu", "position_embedding_type=none", "normalization=LayerNorm",
        "out_proj_has_bias=True"}) {
    EXPECT_EQ(type_of(llama({kModel + unlike})), "tapestry") << unlike;
  }
  for (const char* unlike :
       {"hidden_act=relu", "position_embedding_type=none", "normalization=RMSNorm",
        "qkv_has_bias=False", "mlp_has_bias=False", "out_proj_has_bias=False", "kv_channels=12",
        "untie_embeddings_and_output_weights=True"}) {
    EXPECT_EQ(type_of({kModel + unlike}), "tapestry") << unlike;
  }
  EXPECT_EQ(type_of({kModel + "group_query_attention=True", kModel + "num_query_groups=2"}),
            "tapestry");
}

TEST(FileModelType, OfExperts) {
  EXPECT_EQ(type_of(mixtral()), "mixtral");
  EXPECT_EQ(type_of(mixtral({kModel + "window_size=[3, 0]"})), "mixtral");
  EXPECT_EQ(type_of(mixtral({kMoe + "moe_ffn_hidden_size=16"})), "mixtral");  // none is dense
  EXPECT_EQ(type_of(mixtral({kMoe + "moe_layer_freq=[1, 1]"})), "mixtral");
  EXPECT_EQ(type_of(qwen2_moe()), "qwen2_moe");
  EXPECT_EQ(type_of(qwen2_moe({kMoe + "moe_layer_freq=[0, 1]"})), "qwen2_moe");
  EXPECT_EQ(type_of(qwen2_moe({kMoe + "moe_router_pre_softmax=True"})), "qwen2_moe");
  // What a run trains with is nothing of the weights.
  EXPECT_EQ(type_of(mixtral({kMoe + "aux_loss_factor=0.1", kMoe + "capacity_factor=1.5",
                             kMoe + "moe_z_loss_coeff=0.1"})),
            "mixtral");
  for (const char* unlike : {"moe_layer_freq=[0, 1]", "moe_router_pre_softmax=True",
                             "norm_topk_prob=False", "moe_shared_expert_intermediate_size=8"}) {
    EXPECT_EQ(type_of(mixtral({kMoe + unlike})), "tapestry") << unlike;
  }
  for (const char* unlike :
       {"use_gating_sigmoid=True", "routed_scaling_factor=2", "balance_via_topk_bias=True"}) {
    EXPECT_EQ(type_of(mixtral({kMoe + unlike})), "tapestry") << unlike;
    EXPECT_EQ(type_of(qwen2_moe({kMoe + unlike})), "tapestry") << unlike;
  }
  const Overrides groups = {kMoe + "topk_method=group_limited_greedy", kMoe + "n_group=2",
                            kMoe + "topk_group=1"};
  EXPECT_EQ(type_of(testing::joined(mixtral(), groups)), "tapestry");
  for (const char* unlike : {"mlp_has_bias=True", "out_proj_has_bias=True", "qk_layernorm=True",
                             "normalization=LayerNorm", "hidden_act=silu"}) {
    EXPECT_EQ(type_of(mixtral({kModel + unlike})), "tapestry") << unlike;
    EXPECT_EQ(type_of(qwen2_moe({kModel + unlike})), "tapestry") << unlike;
  }
  EXPECT_EQ(type_of(qwen2_moe({kMoe + "use_shared_expert_gating=False"})), "tapestry");
  EXPECT_EQ(type_of({kMoe + "num_experts=4"}), "tapestry");  // else a GPT-2
}

}  // namespace
}  // namespace tapestry
