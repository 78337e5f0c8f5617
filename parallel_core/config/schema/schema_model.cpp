// Rows of `model_config`.
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace model_section {
namespace {

using M = TransformerConfig;
using R = RotaryConfig;
using F = FlashAttentionConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::model_config, Path...>();

// What 32-bit indices can count.
constexpr Check kSize = between(1, 2147483647);

constexpr std::string_view kDecoderOnly =
    "models are decoder-only GPTs; use num_layers and self-attention";

std::string check_window(const Value& value) {
  const auto& list = value.as<Value::List>();
  if (list.size() != 2 || list[0].as<int64_t>() < 0 || list[1].as<int64_t>() != 0) {
    return "must be [L, 0] with L >= 0 (a token sees itself and the L tokens before it), got " +
           to_yaml(value);
  }
  return {};
}

std::string check_initializer(const Value& value) {
  if (value.is<double>()) {
    return {};
  }
  constexpr std::string_view kNames[] = {"normal",    "zeros",           "ones",
                                         "uniform",   "xavier_uniform",  "he_uniform",
                                         "he_normal", "truncatednormal", "trunc_normal"};
  const auto& name = value.as<std::string>();
  for (const std::string_view known : kNames) {
    if (name == known) {
      return {};
    }
  }
  return "unknown initialiser '" + name + "'; the nearest is '" +
         std::string(nearest(name, kNames)) + "'";
}

constexpr Key kKeys[] = {
    {.name = "from_hf",
     .field = f<&M::from_hf>,
     .path = true,
     .until_resolved = true,
     .doc = "Folder of a Hugging Face model. Its `config.json` gives the keys of the model; other "
            "given keys must agree with it. `training_config.load_checkpoint` is this folder "
            "unless that key is given."},
    {.name = "vocab_size",
     .field = f<&M::vocab_size>,
     .check = kSize,
     .required = true,
     .example = "50304",
     .doc = "Rows of the token table; at least the tokenizer's size."},
    {.name = "num_layers",
     .field = f<&M::num_layers>,
     .check = kSize,
     .required = true,
     .example = "12",
     .doc = "Transformer layers."},
    {.name = "num_attention_heads",
     .field = f<&M::num_attention_heads>,
     .check = kSize,
     .required = true,
     .example = "12",
     .doc = "Query heads."},
    {.name = "hidden_size",
     .field = f<&M::hidden_size>,
     .check = kSize,
     .required = true,
     .example = "768",
     .doc = "Width of the residual stream."},
    {.name = "ffn_hidden_size",
     .field = f<&M::ffn_hidden_size>,
     .check = kSize,
     .required = true,
     .example = "3072",
     .doc = "Width inside the MLP (of each half with swiglu)."},
    {.name = "seq_length",
     .field = f<&M::seq_length>,
     .check = kSize,
     .required = true,
     .example = "1024",
     .doc = "Tokens of one training sequence."},
    {.name = "max_position_embeddings",
     .field = f<&M::max_position_embeddings>,
     .check = kSize,
     .default_text = "seq_length",
     .doc = "Rows of the learned position table; at least `seq_length`."},
    {.name = "kv_channels",
     .field = f<&M::kv_channels>,
     .check = kSize,
     .default_text = "hidden_size / num_attention_heads",
     .doc = "Size of one head."},
    {.name = "group_query_attention",
     .field = f<&M::group_query_attention>,
     .doc = "Share keys and values among groups of query heads."},
    {.name = "num_query_groups",
     .field = f<&M::num_query_groups>,
     .check = kSize,
     .default_text = "32; num_attention_heads without `group_query_attention`",
     .doc = "Key/value heads; divides `num_attention_heads`."},
    {.name = "position_embedding_type",
     .field = f<&M::position_embedding_type>,
     .check = one_of("rope|learned_absolute|alibi|none"),
     .value_aliases = "absolute=learned_absolute",
     .doc =
         "How the model encodes positions: by a rotation of queries and keys (rope), by a learned "
         "table, by a bias of the scores that grows with the distance (ALiBi), or not at all."},
    {.name = "use_alibi_mask",
     .field = f<&M::use_alibi_mask>,
     .default_text = "position_embedding_type == alibi",
     .doc = "Short for `position_embedding_type: alibi`."},
    {.name = "parallel_position_embedding",
     .field = f<&M::parallel_position_embedding>,
     .doc = "Divide the rows of the learned position table over tensor-parallel ranks, like those "
            "of the token table. Has no effect with one rank."},
    {.name = "rotary_config",
     .field = f<&M::rotary_config>,
     .null = Null::kDefault,
     .doc = "Rotary position embedding."},
    {.name = "rotary_config.rotary_percent",
     .field = f<&M::rotary_config, &R::rotary_percent>,
     .check = {.low = 0, .high = 1, .low_open = true},
     .aliases = "rotary_percent",
     .doc = "Share of a head's channels that is rotated."},
    {.name = "rotary_config.rotary_interleaved",
     .field = f<&M::rotary_config, &R::rotary_interleaved>,
     .doc = "Rotary embedding: rotate neighbouring channels (True) or channels half a head apart "
            "(False)."},
    {.name = "rotary_config.seq_len_interpolation_factor",
     .field = f<&M::rotary_config, &R::seq_len_interpolation_factor>,
     .check = above(0),
     .doc = "Divisor of positions before the rotation: a text longer by this factor is rotated as "
            "far as a shorter one was."},
    {.name = "rotary_config.rotary_base",
     .field = f<&M::rotary_config, &R::rotary_base>,
     .check = above(0),
     .aliases = "rotary_base",
     .doc = "Base of the geometric series of the rotation's angles."},
    {.name = "rotary_config.rope_type",
     .field = f<&M::rotary_config, &R::rope_type>,
     .check = one_of("default|llama3"),
     .doc = "`llama3`: low frequencies are divided, as in Llama 3.1 and later, so that the model "
            "can use longer texts than it was first trained on."},
    {.name = "rotary_config.rope_scaling_factor",
     .field = f<&M::rotary_config, &R::rope_scaling_factor>,
     .check = at_least(1),
     .doc = "With `rope_type: llama3`, the divisor of low frequencies."},
    {.name = "rotary_config.low_freq_factor",
     .field = f<&M::rotary_config, &R::low_freq_factor>,
     .check = above(0),
     .doc = "With `rope_type: llama3`, frequencies with fewer turns than this in the original "
            "length are divided."},
    {.name = "rotary_config.high_freq_factor",
     .field = f<&M::rotary_config, &R::high_freq_factor>,
     .check = above(0),
     .doc = "With `rope_type: llama3`, frequencies with more turns than this in the original "
            "length are kept. Between `low_freq_factor` and this number the change is smooth. Must "
            "be above `low_freq_factor`."},
    {.name = "rotary_config.original_max_position_embeddings",
     .field = f<&M::rotary_config, &R::original_max_position_embeddings>,
     .check = kSize,
     .doc = "With `rope_type: llama3`, the length in tokens that the model was first trained on."},
    {.name = "normalization",
     .field = f<&M::normalization>,
     .check = one_of("LayerNorm|RMSNorm"),
     .value_aliases = "FusedRMSNorm=RMSNorm",
     .doc = "Kind of norm before attention, before the MLP and at the end."},
    {.name = "norm_epsilon",
     .field = f<&M::norm_epsilon>,
     .check = above(0),
     .doc = "Number that is added inside the norm's root."},
    {.name = "hidden_act",
     .field = f<&M::hidden_act>,
     .check = one_of("gelu|fast_gelu|relu|silu|swiglu|squared_relu"),
     .value_aliases = "fused_swiglu=swiglu",
     .doc = "Activation of the MLP: gelu with erf, fast_gelu with tanh, swiglu = silu(gate) * up."},
    {.name = "gated_linear_unit",
     .field = f<&M::gated_linear_unit>,
     .default_text = "hidden_act == swiglu",
     .doc = "Whether the MLP multiplies two halves, of which one is activated. It follows from "
            "`hidden_act`; a value that contradicts it is an error."},
    {.name = "apply_swiglu_fusion",
     .field = f<&M::apply_swiglu_fusion>,
     .aliases = "use_fused_swiglu",
     .default_text = "use_fused_kernels",
     .doc = "Compute the gated activation as one op that saves only its input. True needs "
            "`hidden_act: swiglu`."},
    {.name = "add_bias_linear",
     .field = f<&M::add_bias_linear>,
     .doc = "Biases of all linear layers, unless `qkv_has_bias`, `out_proj_has_bias` or "
            "`mlp_has_bias` is given."},
    {.name = "qkv_has_bias",
     .field = f<&M::qkv_has_bias>,
     .aliases = "add_qkv_bias",
     .default_text = "add_bias_linear, else True",
     .doc = "Bias of the query, key and value projections."},
    {.name = "out_proj_has_bias",
     .field = f<&M::out_proj_has_bias>,
     .default_text = "add_bias_linear, else True",
     .doc = "Bias of attention's output projection."},
    {.name = "mlp_has_bias",
     .field = f<&M::mlp_has_bias>,
     .default_text = "add_bias_linear, else True",
     .doc = "Biases of the MLP."},
    {.name = "qk_layernorm",
     .field = f<&M::qk_layernorm>,
     .doc = "Norm of each query and key head before the rotation."},
    {.name = "window_size",
     .field = f<&M::window_size>,
     .check = satisfies(check_window, "[L, 0] with L >= 0"),
     .doc = "Sliding window: a token sees itself and this many tokens before it. null: all tokens "
            "before it."},
    {.name = "use_flash_attention",
     .field = f<&M::use_flash_attention>,
     .doc = "Compute attention without the matrix of scores in memory. This is always done."},
    {.name = "use_eod_reset",
     .field = f<&M::use_eod_reset>,
     .aliases = "use_eod_attn_mask_compression",
     .doc = "Short for `dataset_config.reset_attention_mask`."},
    {.name = "fa_config", .field = f<&M::fa_config>, .doc = "Details of attention."},
    {.name = "fa_config.keep_prob",
     .field = f<&M::fa_config, &F::keep_prob>,
     .check = between(0, 1),
     .doc = "Share of attention probabilities that dropout keeps: 1 - `attention_dropout`."},
    {.name = "fa_config.pre_tokens",
     .field = f<&M::fa_config, &F::pre_tokens>,
     .check = between(0, 2147483647),
     .doc = "Number of earlier tokens that a token sees, as `window_size`; seq_length - 1 and more "
            "means all."},
    {.name = "fa_config.sparse_mode",
     .field = f<&M::fa_config, &F::sparse_mode>,
     .check = between(0, 4),
     .accepted = "0|2|3|4",
     .reason =
         "mode 1 would show every token to every other; attention is causal, and how the mask "
         "is written down makes no difference: leave the key out",
     .doc = "Known for compatibility: whether a causal mask is given whole (0), implied (2, 3) or "
            "a band (4). Results do not change."},
    {.name = "encoder_attn_mask_type",
     .field = f<&M::encoder_attn_mask_type>,
     .check = one_of("causal|padding|no_mask"),
     .aliases = "attn_mask_type",
     .value_aliases = "padding_causal=causal",
     .accepted = "null|causal|padding",
     .reason = "without a mask a token would see the one that it has to predict; leave the key out",
     .doc = "causal, or null: no token sees a later one, even if the data have a mask. padding: if "
            "the data have a mask (`attention_mask.npy`), it alone decides, so that the tokens of "
            "a prefix may see the whole prefix; else as causal."},
    {.name = "attention_dropout",
     .field = f<&M::attention_dropout>,
     .check = between(0, 1),
     .doc = "Dropout of attention probabilities."},
    {.name = "hidden_dropout",
     .field = f<&M::hidden_dropout>,
     .check = between(0, 1),
     .doc = "Dropout after the embedding, attention and the MLP."},
    {.name = "untie_embeddings_and_output_weights",
     .field = f<&M::untie_embeddings_and_output_weights>,
     .doc = "True: the head has its own matrix. False: it uses the token table."},
    {.name = "init_method",
     .field = f<&M::init_method>,
     .check = satisfies(check_initializer, "a distribution, or a constant"),
     .aliases = "init_method_type",
     .doc = "Initial weights: `normal`, `truncatednormal` (cut at two deviations) or `uniform` of "
            "deviation `init_method_std`; `xavier_uniform`, `he_uniform` or `he_normal` by the "
            "matrix's sizes; `zeros`, `ones` or a number."},
    {.name = "init_method_std",
     .field = f<&M::init_method_std>,
     .check = at_least(0),
     .doc = "Standard deviation of initial weights, if `init_method` uses one."},
    {.name = "scaled_output_init",
     .field = f<&M::scaled_output_init>,
     .doc = "Divide the standard deviation of initial weights by sqrt(2 num_layers) for the "
            "projections that end in the residual stream."},
    {.name = "bias_init",
     .field = f<&M::bias_init>,
     .check = satisfies(check_initializer, "a distribution, or a constant"),
     .doc = "Initial biases: the choices of `init_method` that do not depend on a matrix's sizes."},
    {.name = "params_dtype",
     .field = f<&M::params_dtype>,
     .doc = "Type of the parameters. A 16-bit type must equal `compute_dtype`; the optimizer then "
            "keeps a float32 master of each parameter."},
    {.name = "compute_dtype",
     .field = f<&M::compute_dtype>,
     .default_text = "float32; see `training_config.bf16` and `fp16`",
     .doc = "Type of matrix products and of the activations between them."},
    {.name = "use_fused_kernels",
     .field = f<&M::use_fused_kernels>,
     .doc = "False: only the operands and results of matrix products are rounded to "
            "`compute_dtype`; everything between them is float32 and made of elementary ops. Slow, "
            "for comparing numbers."},
    {.name = "fused_linear_cross_entropy",
     .field = f<&M::fused_linear_cross_entropy>,
     .default_text = "in training, with `use_fused_kernels`, not in float16",
     .doc = "Compute output layer and loss in one op, chunk by chunk, so that the logits are never "
            "in memory as a whole. In float16 this takes one more matrix product."},
    {.name = "layernorm_compute_dtype",
     .field = f<&M::layernorm_compute_dtype>,
     .doc = "Type to which a norm's input is rounded; its sums are float32."},
    {.name = "rotary_dtype",
     .field = f<&M::rotary_dtype>,
     .doc = "Type to which the rotary table and the rotated queries and keys are rounded; the "
            "rotation is computed in float32."},
    {.name = "embedding_init_dtype",
     .field = f<&M::embedding_init_dtype>,
     .default_text = "params_dtype",
     .doc = "Type of the embedding tables. It is that of all parameters, `params_dtype`; another "
            "type is an error."},
    {.name = "softmax_compute_dtype",
     .field = f<&M::softmax_compute_dtype>,
     .doc = "Type of attention's softmax if `attention_softmax_in_fp32` is False. 16-bit types "
            "hold the scores in memory."},
    {.name = "residual_connection_dtype",
     .field = f<&M::residual_connection_dtype>,
     .aliases = "residual_dtype",
     .default_text = "that of the activations",
     .doc = "Type of the residual stream."},
    {.name = "attention_softmax_in_fp32",
     .field = f<&M::attention_softmax_in_fp32>,
     .doc = "Compute attention's softmax in float32, whatever `softmax_compute_dtype` is."},
    {.name = "fp32_residual_connection",
     .field = f<&M::fp32_residual_connection>,
     .doc = "Keep the residual stream in float32, whatever the type of the activations is."},
    {.name = "fp16_lm_cross_entropy",
     .field = f<&M::fp16_lm_cross_entropy>,
     .doc = "Give float16 logits to the loss without conversion; its sums are float32. With fused "
            "kernels this is always done; needs `compute_dtype: float16`."},
    {.name = "apply_rope_fusion",
     .field = f<&M::apply_rope_fusion>,
     .aliases = "use_fused_rope",
     .default_text = "use_fused_kernels",
     .doc = "Compute the rotation of queries and keys as one op."},
    {.name = "apply_query_key_layer_scaling",
     .field = f<&M::apply_query_key_layer_scaling>,
     .doc = "Store the attention scores divided by the layer's number, which needs less range in "
            "16 bits; the softmax, then in float32, multiplies by it again. Results differ only by "
            "rounding. The fused kernels hold scores in float32 in any case."},
    {.name = "apply_residual_connection_post_norm",
     .field = f<&M::apply_residual_connection_post_norm>,
     .doc = "Take the residual from the norm's output instead of its input."},
    {.name = "use_final_norm",
     .field = f<&M::use_final_norm>,
     .doc = "Apply a norm after the last layer."},
    {.name = "use_sandwich_norm",
     .field = f<&M::use_sandwich_norm>,
     .doc = "Apply norms after attention and MLP in addition to those before them."},
    {.name = "attn_post_norm_scale",
     .field = f<&M::attn_post_norm_scale>,
     .check = between(0, 1),
     .doc = "With `use_sandwich_norm`, initial gain of the norm after attention."},
    {.name = "ffn_post_norm_scale",
     .field = f<&M::ffn_post_norm_scale>,
     .check = between(0, 1),
     .doc = "With `use_sandwich_norm`, initial gain of the norm after the MLP."},
    {.name = "out_hidden_size",
     .field = f<&M::out_hidden_size>,
     .check = above(0),
     .doc = "Output width of the MLP. The output is added to the residual stream, so a value other "
            "than `hidden_size` is an error."},
    {.name = "num_experts",
     .field = f<&M::num_experts>,
     .check = above(0),
     .accepted = "null|1",
     .reason = "the number of experts is set by moe_config.num_experts",
     .doc = "Known for compatibility."},
    {.name = "model_type",
     .field = f<&M::model_type>,
     .accepted = "encoder_or_decoder",
     .reason = kDecoderOnly,
     .doc = "Known for compatibility."},
    {.name = "recompute_method",
     .field = f<&M::recompute_method>,
     .check = one_of("uniform|block"),
     .doc = "With `recompute_granularity: full`. uniform: of each group of `recompute_num_layers` "
            "layers only the input of the first is kept. block: the first `recompute_num_layers` "
            "layers of each chunk are recomputed, one by one. null: uniform."},
    {.name = "recompute_num_layers",
     .field = f<&M::recompute_num_layers>,
     .check = above(0),
     .doc = "With `recompute_granularity: full`, the number of layers that `recompute_method` "
            "uses. null: 1."},
    {.name = "recompute_granularity",
     .field = f<&M::recompute_granularity>,
     .check = one_of("selective|full"),
     .doc = "full: recompute whole layers. selective: recompute the result of attention alone "
            "(with `use_flash_attention` the MLP's activation, which is recomputed in any case). "
            "If `recompute_config` recomputes something, it takes precedence."},
    {.name = "recompute_activations",
     .field = f<&M::recompute_activations>,
     .null = Null::kDefault,
     .doc = "Short for `recompute_granularity: selective`."},
    {.name = "select_recompute",
     .field = f<&M::select_recompute>,
     .doc = "Short for `recompute_granularity: selective`."},
    {.name = "select_comm_recompute",
     .field = f<&M::select_comm_recompute>,
     .doc = "With sequence parallelism, gather inputs again in the backward pass. This is done in "
            "any case, unless `recompute_config.select_comm_recompute_exclude` excludes it."},
    {.name = "distribute_saved_activations",
     .field = f<&M::distribute_saved_activations>,
     .doc = "With `recompute_granularity: full`, divide the kept inputs over tensor-parallel "
            "ranks, as `recompute_config.recompute_slice_activation` does for the whole model."},
};

}  // namespace
}  // namespace model_section

std::span<const Key> model_keys() { return model_section::kKeys; }

}  // namespace tapestry::config
