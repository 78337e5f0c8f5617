#include "parallel_core/dist_checkpointing/hf_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/parallel_core/model_families.h"

namespace tapestry {
namespace {

using testing::kModel;
using testing::kQkvBias;
using testing::kUntied;
using testing::llama;
using testing::Overrides;
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
  for (const char* unlike : {"qk_layernorm=True", "window_size=[3, 0]", "use_sandwich_norm=True",
                             "use_final_norm=False", "apply_residual_connection_post_norm=True"}) {
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

}  // namespace
}  // namespace tapestry
