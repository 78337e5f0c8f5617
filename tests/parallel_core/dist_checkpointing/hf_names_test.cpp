#include "parallel_core/dist_checkpointing/hf_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
using testing::State;

std::string type_of(const Overrides& overrides) {
  return file_model_type(small_config(overrides).model_config);
}

TEST(FileModelType, WhatEachFamilyCanExpress) {
  EXPECT_EQ(type_of(llama()), "llama");
  EXPECT_EQ(type_of(llama({kUntied, kModel + "kv_channels=12"})), "llama");
  EXPECT_EQ(type_of(llama({kQkvBias})), "qwen2");
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
        "rotary_config.seq_len_interpolation_factor=2", "hidden_act=silu",
        "position_embedding_type=none", "normalization=LayerNorm", "out_proj_has_bias=True",
        "mlp_has_bias=True"}) {
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

nlohmann::json json_of(const Overrides& overrides) {
  return nlohmann::json::parse(model_config_json(small_config(overrides).model_config));
}

TEST(ModelConfigJson, Llama) {
  const nlohmann::json json =
      json_of(llama({kUntied, kModel + "kv_channels=12", kModel + "rotary_config.rotary_base=5e5",
                     kModel + "norm_epsilon=1e-6", kModel + "max_position_embeddings=64"}));
  const nlohmann::json expected = {{"architectures", {"LlamaForCausalLM"}},
                                   {"model_type", "llama"},
                                   {"vocab_size", 31},
                                   {"tie_word_embeddings", false},
                                   {"torch_dtype", "float32"},
                                   {"hidden_size", 32},
                                   {"intermediate_size", 48},
                                   {"num_hidden_layers", 2},
                                   {"num_attention_heads", 4},
                                   {"num_key_value_heads", 2},
                                   {"head_dim", 12},
                                   {"rms_norm_eps", 1e-6},
                                   {"hidden_act", "silu"},
                                   {"max_position_embeddings", 64},
                                   {"rope_theta", 5e5},
                                   {"attention_bias", false},
                                   {"mlp_bias", false},
                                   {"initializer_range", 0.1}};
  EXPECT_EQ(json, expected);
}

TEST(ModelConfigJson, Qwen2) {
  const nlohmann::json json = json_of(llama({kQkvBias}));
  EXPECT_EQ(json.at("model_type"), "qwen2");
  EXPECT_EQ(json.at("architectures"), nlohmann::json::array({"Qwen2ForCausalLM"}));
  EXPECT_EQ(json.at("tie_word_embeddings"), true);
}

TEST(ModelConfigJson, Gpt2) {
  const nlohmann::json json =
      json_of({kModel + "max_position_embeddings=64", kModel + "hidden_dropout=0.1",
               kModel + "attention_dropout=0.2"});
  const nlohmann::json expected = {{"architectures", {"GPT2LMHeadModel"}},
                                   {"model_type", "gpt2"},
                                   {"vocab_size", 31},
                                   {"tie_word_embeddings", true},
                                   {"torch_dtype", "float32"},
                                   {"n_positions", 64},
                                   {"n_embd", 32},
                                   {"n_layer", 2},
                                   {"n_head", 4},
                                   {"n_inner", 48},
                                   {"activation_function", "gelu"},
                                   {"layer_norm_epsilon", 1e-5},
                                   {"resid_pdrop", 0.1},
                                   {"embd_pdrop", 0.1},
                                   {"attn_pdrop", 0.2},
                                   {"initializer_range", 0.1}};
  EXPECT_EQ(json, expected);
  EXPECT_EQ(json_of({kModel + "hidden_act=fast_gelu"}).at("activation_function"), "gelu_new");
}

TEST(ModelConfigJson, Others) {
  EXPECT_EQ(json_of({kModel + "hidden_act=relu"}).at("model_type"), "tapestry");
}

}  // namespace
}  // namespace tapestry
