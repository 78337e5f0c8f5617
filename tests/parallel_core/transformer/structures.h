// The model structures that the tests of this folder go through.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/parallel_core/model_families.h"

namespace tapestry::testing {

struct Structure {
  std::string name;
  std::vector<std::string> overrides;
};
inline std::ostream& operator<<(std::ostream& out, const Structure& s) { return out << s.name; }

inline std::vector<Structure> structures() {
  const std::string m = "model_config.";
  const std::string rope = m + "position_embedding_type=rope";
  const std::string rms = m + "normalization=RMSNorm";
  const std::string swiglu = m + "hidden_act=swiglu";
  const std::string grouped = m + "group_query_attention=True";
  const std::string untied = m + "untie_embeddings_and_output_weights=True";
  const std::string no_bias = m + "add_bias_linear=False";
  const std::string sandwich = m + "use_sandwich_norm=True";
  const std::string post_norm = m + "apply_residual_connection_post_norm=True";
  const auto joined = [](std::vector<std::string> a, const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const std::vector<std::string> delta_net = {
      m + "linear_num_key_heads=4", m + "linear_num_value_heads=8", m + "linear_key_head_dim=6",
      m + "linear_value_head_dim=10"};
  const std::vector<std::string> mamba = {m + "mamba_num_heads=4", m + "mamba_head_dim=6",
                                          m + "mamba_state_dim=5"};
  return {
      {"gpt2", {}},
      {"llama", {rope, rms, swiglu, no_bias, untied}},
      {"qwen2",
       {rope, rms, swiglu, no_bias, m + "qkv_has_bias=True", grouped, m + "num_query_groups=2"}},
      {"rope_interleaved", {rope, m + "rotary_config.rotary_interleaved=True"}},
      {"rope_half_the_channels", {rope, m + "rotary_config.rotary_percent=0.5"}},
      {"rope_interleaved_half_the_channels",
       {rope, m + "rotary_config.rotary_percent=0.5", m + "rotary_config.rotary_interleaved=True"}},
      {"rope_interpolated", {rope, m + "rotary_config.seq_len_interpolation_factor=4"}},
      {"rope_llama3",
       {rope, m + "rotary_config.rope_type=llama3", m + "rotary_config.rotary_base=100",
        m + "rotary_config.original_max_position_embeddings=40"}},
      {"rope_base", {rope, m + "rotary_config.rotary_base=500"}},
      {"more_positions_than_tokens", {m + "max_position_embeddings=13"}},
      {"alibi", {m + "position_embedding_type=alibi"}},
      {"alibi_grouped_window",
       {m + "position_embedding_type=alibi", grouped, m + "num_query_groups=2",
        m + "window_size=[3, 0]"}},
      {"query_key_layer_scaling",
       {rope, m + "apply_query_key_layer_scaling=True", m + "use_fused_kernels=False"}},
      {"no_positions", {m + "position_embedding_type=none"}},
      {"gqa", {rope, grouped, m + "num_query_groups=2"}},
      {"mqa", {rope, grouped, m + "num_query_groups=1"}},
      {"window", {rope, m + "window_size=[3, 0]"}},
      {"window_of_one", {m + "window_size=[0, 0]"}},
      {"qk_layernorm", {rope, m + "qk_layernorm=True"}},
      {"qk_rmsnorm", {rope, rms, m + "qk_layernorm=True", grouped, m + "num_query_groups=2"}},
      {"output_gate",
       {rope, rms, m + "attention_output_gate=True", grouped, m + "num_query_groups=2"}},
      {"gated_delta_net",
       joined({rope, rms, no_bias, m + "layer_types=[linear_attention, full_attention]",
               m + "attention_output_gate=True"},
              delta_net)},
      {"gated_delta_net_with_negative_eigenvalues",
       joined({rms, m + "layer_types=[linear_attention]", m + "linear_allow_neg_eigval=True",
               m + "linear_norm_epsilon=1e-4", m + "norm_placement=post",
               m + "mixer_norm_placement=pre", m + "layernorm_zero_centered_gamma=True"},
              delta_net)},
      {"short_conv", {rope, m + "layer_types=[conv, full_attention]"}},
      {"short_conv_with_bias",
       {m + "layer_types=[conv]", m + "short_conv_has_bias=True", m + "short_conv_kernel_dim=4"}},
      {"mamba", joined({rms, m + "layer_types=[full_attention, mamba]"}, mamba)},
      {"mamba_in_groups", joined({rms, m + "layer_types=[mamba]", m + "mamba_num_groups=4",
                                  m + "mamba_proj_has_bias=True", m + "mamba_conv_has_bias=False",
                                  m + "mamba_time_step_limit=[0.3, 1.4]"},
                                 mamba)},
      {"fast_gelu", {m + "hidden_act=fast_gelu"}},
      {"relu", {m + "hidden_act=relu"}},
      {"silu", {m + "hidden_act=silu"}},
      {"squared_relu", {m + "hidden_act=squared_relu"}},
      {"swiglu_with_bias", {swiglu}},
      {"untied", {untied}},
      {"no_qkv_bias", {m + "qkv_has_bias=False"}},
      {"no_out_proj_bias", {m + "out_proj_has_bias=False"}},
      {"no_mlp_bias", {m + "mlp_has_bias=False"}},
      {"sandwich", {sandwich, m + "attn_post_norm_scale=0.5", m + "ffn_post_norm_scale=0.25"}},
      {"residual_from_norm", {post_norm, rms, rope}},
      {"sandwich_residual_from_norm_window",
       {sandwich, post_norm, m + "window_size=[2, 0]", untied}},
      {"no_final_norm", {m + "use_final_norm=False", rms}},
      {"wide_heads", {rope, m + "kv_channels=12"}},
      {"wide_heads_grouped",
       {rope, m + "kv_channels=12", grouped, m + "num_query_groups=2", no_bias, swiglu}},
      {"epsilon", {rms, m + "norm_epsilon=0.1"}},
      {"zero_centered_rms", {rms, rope, m + "layernorm_zero_centered_gamma=True"}},
      {"zero_centered_sandwich_qk",
       {sandwich, rope, m + "qk_layernorm=True", m + "layernorm_zero_centered_gamma=True"}},
      {"one_layer", {m + "num_layers=1"}},
      {"window_in_some_layers",
       {rope, m + "window_size=[3, 0]", m + "sliding_window_pattern=2",
        m + "rotary_config.sliding_rotary_base=100"}},
      {"rotation_in_some_layers",
       {rope, rms, m + "layer_types=[full_attention, sliding_attention]", m + "window_size=[2, 0]",
        m + "no_rope_layers=[0, 1]"}},
      {"post_norm", {rope, rms, m + "norm_placement=post"}},
      {"post_norm_projection_norm",
       {rope, rms, m + "norm_placement=post", m + "qk_layernorm=True",
        m + "qk_layernorm_scope=projection", grouped, m + "num_query_groups=2"}},
      {"parallel", {rope, m + "norm_placement=parallel"}},
      {"parallel_one_norm",
       {rope, m + "norm_placement=parallel_one_norm", m + "norm_has_bias=False", no_bias}},
      {"norm_of_each_head",
       {rope, m + "qk_layernorm=True", m + "qk_layernorm_scope=each_head", grouped,
        m + "num_query_groups=2"}},
      {"norm_after_rotation",
       {rope, rms, m + "qk_layernorm=True", m + "qk_layernorm_after_rotary=True"}},
      {"no_gains",
       {rope, rms, m + "norm_has_gain=False", m + "embedding_norm=True", m + "qk_layernorm=True",
        m + "qk_layernorm_after_rotary=True", m + "rotary_config.rotary_backward=True", untied}},
      {"embedding_norm", {m + "embedding_norm=True", m + "embedding_multiplier=3"}},
      {"multipliers",
       {rope, m + "embedding_multiplier=3", m + "residual_multiplier=0.3",
        m + "attention_scale=0.2", m + "logit_multiplier=0.25"}},
      {"residual_multiplier_sandwich", {sandwich, m + "residual_multiplier=0.5"}},
      {"soft_caps",
       {rope, m + "attention_softcap=0.5", m + "logit_softcap=0.7", m + "logit_multiplier=2"}},
      {"sinks", {rope, m + "attention_sinks=True", grouped, m + "num_query_groups=2"}},
      {"sinks_and_windows",
       {rope, m + "attention_sinks=True", m + "window_size=[2, 0]",
        m + "sliding_window_pattern=2"}},
      {"clipped", {rope, m + "clip_qkv=0.02"}},
      {"temperature",
       {rope, m + "query_temperature_beta=0.5",
        m + "rotary_config.original_max_position_embeddings=3"}},
      {"gated_gelu", {rope, m + "hidden_act=fast_gelu", m + "gated_linear_unit=True"}},
      {"gated_relu", {m + "hidden_act=relu", m + "gated_linear_unit=True", no_bias}},
      {"clamped_swiglu", {rope, m + "hidden_act=clamped_swiglu", m + "swiglu_limit=0.05"}},
      {"xielu", {rope, rms, m + "hidden_act=xielu", no_bias}},
      {"latent",
       {rope, rms, swiglu, no_bias, m + "multi_latent_attention=True", m + "kv_lora_rank=12",
        m + "qk_head_dim=6", m + "qk_pos_emb_head_dim=4", m + "v_head_dim=8"}},
      {"latent_queries",
       {rope, rms, m + "multi_latent_attention=True", m + "q_lora_rank=16", m + "kv_lora_rank=12",
        m + "qk_head_dim=6", m + "qk_pos_emb_head_dim=4", m + "v_head_dim=8",
        m + "rotary_config.rotary_interleaved=True"}},
      {"ahead", {rope, m + "mtp_num_layers=1"}},
      {"two_ahead",
       {rope, rms, swiglu, no_bias, untied, m + "mtp_num_layers=2",
        m + "mtp_loss_scaling_factor=0.7", m + "embedding_multiplier=3", m + "logit_multiplier=0.5",
        m + "logit_softcap=0.7"}},
      {"ahead_latent",
       {rope, rms, swiglu, no_bias, untied, m + "multi_latent_attention=True", m + "q_lora_rank=16",
        m + "kv_lora_rank=12", m + "qk_head_dim=6", m + "qk_pos_emb_head_dim=4", m + "v_head_dim=8",
        m + "mtp_num_layers=1"}},
      {"ahead_after_a_window",
       {rope, m + "window_size=[2, 0]", m + "layer_types=[full_attention, sliding_attention]",
        m + "no_rope_layers=[1, 0]", m + "mtp_num_layers=2", grouped, m + "num_query_groups=2"}},
      {"heads_by_kind",
       {rope, rms, m + "window_size=[3, 0]", m + "sliding_window_pattern=2",
        m + "full_attention_kv_channels=12", m + "rotary_config.rotary_percent=0.5",
        m + "qk_layernorm=True", m + "v_layernorm=True"}},
      {"proportional_rotation",
       {rope, m + "rotary_config.rope_type=proportional", m + "rotary_config.rotary_percent=0.6",
        m + "rotary_config.seq_len_interpolation_factor=2"}},
      {"values_that_are_keys",
       {rope, rms, grouped, m + "num_query_groups=2", m + "window_size=[3, 0]",
        m + "sliding_window_pattern=2", m + "full_attention_num_query_groups=1",
        m + "full_attention_value_is_key=True", m + "qk_layernorm=True", m + "clip_qkv=0.5"}},
      {"shared_keys",
       {rope, m + "num_layers=3", m + "num_kv_shared_layers=2", m + "use_double_wide_mlp=True",
        m + "qk_layernorm=True"}},
      {"shared_keys_by_kind",
       {rms, swiglu, no_bias, m + "num_layers=5", m + "num_kv_shared_layers=2",
        m + "window_size=[2, 0]",
        m + "layer_types=[full_attention, sliding_attention, sliding_attention, full_attention, "
            "sliding_attention]"}},
      {"per_layer_embeddings", {rope, m + "per_layer_embedding_size=6"}},
      {"layer_scalar", {rope, rms, m + "layer_scalar=True", m + "norm_placement=parallel"}},
      {"streams", {m + "enable_hyper_connections=True"}},
      {"two_streams_sandwich_ahead",
       {rope, rms, swiglu, untied, sandwich, m + "enable_hyper_connections=True",
        m + "num_residual_streams=2", m + "mhc_sinkhorn_iterations=3",
        m + "mhc_init_gating_factor=0.7", m + "mhc_layernorm_epsilon=0.01",
        m + "residual_multiplier=0.5", m + "mtp_num_layers=2"}},
      {"streams_of_mixers_post_norm",
       joined({rope, rms, m + "layer_types=[linear_attention, full_attention, conv]",
               m + "num_layers=3", m + "norm_placement=post", m + "mhc_init_gating_factor=0.5",
               m + "enable_hyper_connections=True", m + "num_residual_streams=3"},
              delta_net)},
      {"streams_composed",
       {rope, m + "enable_hyper_connections=True", m + "use_fused_kernels=False"}},
      {"gemma4", gemma4()},
      {"gemma4_moe", gemma4_moe()},
  };
}

}  // namespace tapestry::testing
