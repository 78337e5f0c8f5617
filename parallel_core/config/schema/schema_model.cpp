// Rows of `model_config`.
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace model_section {
namespace {

using M = TransformerConfig;
using R = RotaryConfig;
using F = FlashAttentionConfig;
using L = LinearAttentionConfig;
using C = ShortConvConfig;
using S = MambaConfig;
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

constexpr std::string_view kLayerTypes =
    "full_attention, sliding_attention, linear_attention, conv or mamba";

std::string check_layer_types(const Value& value) {
  for (const Value& kind : value.as<Value::List>()) {
    const auto& name = kind.as<std::string>();
    const bool known = name == "full_attention" || name == "sliding_attention" ||
                       mixer_kind(name) != MixerKind::kAttention;
    if (!known) {
      return concat("must be ", kLayerTypes, " for each layer, got ", to_yaml(kind));
    }
  }
  return value.as<Value::List>().empty() ? "must have a kind for each layer, got []" : "";
}

std::string check_time_step_limit(const Value& value) {
  const auto& list = value.as<Value::List>();
  const bool ascends =
      list.size() == 2 && list[0].as<double>() >= 0 && list[0].as<double>() < list[1].as<double>();
  return ascends ? "" : "must be [least, most] with 0 <= least < most, got " + to_yaml(value);
}

std::string check_rotated_layers(const Value& value) {
  for (const Value& one : value.as<Value::List>()) {
    if (one.as<int64_t>() != 0 && one.as<int64_t>() != 1) {
      return "must have a 1 for each layer that is rotated and a 0 for the others, got " +
             to_yaml(value);
    }
  }
  return value.as<Value::List>().empty() ? "must have a 0 or 1 for each layer, got []" : "";
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
    {.name = "hf_model_type",
     .field = f<&M::hf_model_type>,
     .example = "phi3",
     .doc = "Family in whose form checkpoints and exports are written: a `model_type` of "
            "[models.md](models.md) that can say the model. `from_hf` gives that of its folder. "
            "null: llama, mistral, qwen2, qwen3, mixtral, qwen2_moe or gpt2, the first that can, "
            "else the keys of this project."},
    {.name = "vocab_size",
     .field = f<&M::vocab_size>,
     .form = Form::kTold,
     .check = kSize,
     .required = true,
     .example = "50304",
     .doc = "Rows of the token table; at least the tokenizer's size."},
    {.name = "num_layers",
     .field = f<&M::num_layers>,
     .form = Form::kTold,
     .check = kSize,
     .required = true,
     .example = "12",
     .doc = "Transformer layers."},
    {.name = "num_attention_heads",
     .field = f<&M::num_attention_heads>,
     .form = Form::kTold,
     .check = kSize,
     .required = true,
     .example = "12",
     .doc = "Query heads."},
    {.name = "hidden_size",
     .field = f<&M::hidden_size>,
     .form = Form::kTold,
     .check = kSize,
     .required = true,
     .example = "768",
     .doc = "Width of the residual stream."},
    {.name = "ffn_hidden_size",
     .field = f<&M::ffn_hidden_size>,
     .form = Form::kTold,
     .check = kSize,
     .required = true,
     .example = "3072",
     .doc = "Width inside the MLP (of each half with swiglu)."},
    {.name = "seq_length",
     .field = f<&M::seq_length>,
     .form = Form::kTold,
     .check = kSize,
     .required = true,
     .example = "1024",
     .doc = "Tokens of one training sequence."},
    {.name = "max_position_embeddings",
     .field = f<&M::max_position_embeddings>,
     .form = Form::kTold,
     .check = kSize,
     .default_text = "seq_length",
     .doc = "Rows of the learned position table; at least `seq_length`."},
    {.name = "kv_channels",
     .field = f<&M::kv_channels>,
     .form = Form::kTold,
     .check = kSize,
     .default_text = "hidden_size / num_attention_heads",
     .doc = "Size of one head."},
    {.name = "group_query_attention",
     .field = f<&M::group_query_attention>,
     .form = Form::kTold,
     .doc = "Share keys and values among groups of query heads."},
    {.name = "num_query_groups",
     .field = f<&M::num_query_groups>,
     .form = Form::kTold,
     .check = kSize,
     .default_text = "32; num_attention_heads without `group_query_attention`",
     .doc = "Key/value heads; divides `num_attention_heads`."},
    {.name = "full_attention_kv_channels",
     .field = f<&M::full_attention_kv_channels>,
     .form = Form::kDecided,
     .check = kSize,
     .aliases = "global_head_dim",
     .default_text = "kv_channels",
     .doc = "Size of one head in layers of the kind `full_attention`, as in Gemma 4. Has no effect "
            "without `layer_types`."},
    {.name = "full_attention_num_query_groups",
     .field = f<&M::full_attention_num_query_groups>,
     .form = Form::kDecided,
     .check = kSize,
     .aliases = "num_global_key_value_heads",
     .default_text = "num_query_groups",
     .doc = "Key/value heads in layers of the kind `full_attention`; divides "
            "`num_attention_heads`."},
    {.name = "full_attention_value_is_key",
     .field = f<&M::full_attention_value_is_key>,
     .form = Form::kDecided,
     .doc = "Layers of the kind `full_attention` have no matrix that makes values: what makes keys "
            "makes them too, before norm and rotation."},
    {.name = "num_kv_shared_layers",
     .field = f<&M::num_kv_shared_layers>,
     .form = Form::kDecided,
     .check = at_least(0),
     .doc = "The last so many layers make no keys and values but use those of the last layer "
            "before them that is of their kind, normed and rotated, as in Gemma 3n and 4. Both "
            "must lie on one pipeline stage."},
    {.name = "use_double_wide_mlp",
     .field = f<&M::use_double_wide_mlp>,
     .form = Form::kDecided,
     .doc = "The MLP of `num_kv_shared_layers` is 2 `ffn_hidden_size` wide."},
    {.name = "per_layer_embedding_size",
     .field = f<&M::per_layer_embedding_size>,
     .form = Form::kDecided,
     .check = at_least(0),
     .aliases = "hidden_size_per_layer_input",
     .doc = "Width p of a second embedding e of each token for each layer, as in Gemma 3n and 4. "
            "Behind the MLP norm(W_p (gelu(W_g z) * e)) is added to the sum z. e is, divided by "
            "the root of 2, a row of a table plus a normed product with the first embedding. 0: "
            "none."},
    {.name = "per_layer_vocab_size",
     .field = f<&M::per_layer_vocab_size>,
     .form = Form::kDecided,
     .check = kSize,
     .aliases = "vocab_size_per_layer_input",
     .default_text = "vocab_size",
     .doc = "Rows of that table; at least `vocab_size`."},
    {.name = "layer_scalar",
     .field = f<&M::layer_scalar>,
     .form = Form::kDecided,
     .doc = "Multiply what a layer gives by a number of the layer, which files hold and training "
            "leaves alone; 1 in new models. As in Gemma 4."},
    {.name = "position_embedding_type",
     .field = f<&M::position_embedding_type>,
     .form = Form::kTold,
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
     .form = Form::kTold,
     .check = {.low = 0, .high = 1, .low_open = true},
     .aliases = "rotary_percent",
     .doc = "Share of a head's channels that is rotated."},
    {.name = "rotary_config.rotary_interleaved",
     .field = f<&M::rotary_config, &R::rotary_interleaved>,
     .form = Form::kTold,
     .doc = "Rotary embedding: rotate neighbouring channels (True) or channels half a head apart "
            "(False)."},
    {.name = "rotary_config.rotary_backward",
     .field = f<&M::rotary_config, &R::rotary_backward>,
     .form = Form::kDecided,
     .doc = "Rotate by the negative angle, as nanochat does."},
    {.name = "rotary_config.seq_len_interpolation_factor",
     .field = f<&M::rotary_config, &R::seq_len_interpolation_factor>,
     .form = Form::kTold,
     .check = above(0),
     .doc = "Divisor of positions before the rotation: a text longer by this factor is rotated as "
            "far as a shorter one was."},
    {.name = "rotary_config.rotary_base",
     .field = f<&M::rotary_config, &R::rotary_base>,
     .form = Form::kTold,
     .check = above(0),
     .aliases = "rotary_base",
     .doc = "Base of the geometric series of the rotation's angles."},
    {.name = "rotary_config.sliding_rotary_base",
     .field = f<&M::rotary_config, &R::sliding_rotary_base>,
     .form = Form::kDecided,
     .check = above(0),
     .doc = "Base of the rotation in layers of the kind `sliding_attention`, which then is not "
            "scaled by any `rope_type`, as in Gemma 3 and OLMo 3. null: all layers rotate by "
            "`rotary_base`."},
    {.name = "rotary_config.rope_type",
     .field = f<&M::rotary_config, &R::rope_type>,
     .form = Form::kTold,
     .check = one_of("default|llama3|yarn|longrope|dynamic|proportional"),
     .value_aliases = "su=longrope",
     .doc = "How a model is used on longer texts than it was first trained on. `llama3`: low "
            "frequencies are divided, as in Llama 3.1 and later. `yarn`: the same with a ramp, and "
            "queries and keys become a little longer. `longrope`: each frequency has its own "
            "divisor, one for short texts and one for long ones. `dynamic`: the base grows with "
            "the text. `proportional`: `rotary_percent` is the share of the pairs that turn, with "
            "frequencies as if all did, and the others stand still, as in Gemma 4; layers with "
            "`sliding_rotary_base` turn whole heads."},
    {.name = "rotary_config.rope_scaling_factor",
     .field = f<&M::rotary_config, &R::rope_scaling_factor>,
     .form = Form::kTold,
     .check = at_least(1),
     .doc = "Length of the longest texts by the original length: the divisor of low frequencies "
            "(`llama3`, `yarn`) and the factor of the base's growth (`dynamic`). `longrope` "
            "derives the length of queries and keys from it."},
    {.name = "rotary_config.original_max_position_embeddings",
     .field = f<&M::rotary_config, &R::original_max_position_embeddings>,
     .form = Form::kTold,
     .check = kSize,
     .doc = "Length in tokens that the model was first trained on. Read by every `rope_type` but "
            "`default`."},
    {.name = "rotary_config.low_freq_factor",
     .field = f<&M::rotary_config, &R::low_freq_factor>,
     .form = Form::kTold,
     .check = above(0),
     .doc = "With `rope_type: llama3`, frequencies with fewer turns than this in the original "
            "length are divided."},
    {.name = "rotary_config.high_freq_factor",
     .field = f<&M::rotary_config, &R::high_freq_factor>,
     .form = Form::kTold,
     .check = above(0),
     .doc = "With `rope_type: llama3`, frequencies with more turns than this in the original "
            "length are kept. Between `low_freq_factor` and this number the change is smooth. Must "
            "be above `low_freq_factor`."},
    {.name = "rotary_config.beta_fast",
     .field = f<&M::rotary_config, &R::beta_fast>,
     .form = Form::kTold,
     .check = above(0),
     .doc = "With `rope_type: yarn`, frequencies with more turns than this in the original length "
            "are kept. Must be above `beta_slow`."},
    {.name = "rotary_config.beta_slow",
     .field = f<&M::rotary_config, &R::beta_slow>,
     .form = Form::kTold,
     .check = above(0),
     .doc = "With `rope_type: yarn`, frequencies with fewer turns than this in the original length "
            "are divided. Between the two the divisor follows a ramp."},
    {.name = "rotary_config.truncate",
     .field = f<&M::rotary_config, &R::truncate>,
     .form = Form::kTold,
     .doc = "With `rope_type: yarn`, whether the ramp begins and ends at whole pairs of channels."},
    {.name = "rotary_config.mscale",
     .field = f<&M::rotary_config, &R::mscale>,
     .form = Form::kTold,
     .check = at_least(0),
     .doc = "With `rope_type: yarn`, strength of the growth of queries and keys: their factor is "
            "(0.1 mscale ln(rope_scaling_factor) + 1), divided by the same with `mscale_all_dim`. "
            "Needs `mscale_all_dim`. null: 1, without a divisor."},
    {.name = "rotary_config.mscale_all_dim",
     .field = f<&M::rotary_config, &R::mscale_all_dim>,
     .form = Form::kTold,
     .check = at_least(0),
     .doc = "With `rope_type: yarn`, see `mscale`."},
    {.name = "rotary_config.mscale_on_angles",
     .field = f<&M::rotary_config, &R::mscale_on_angles>,
     .form = Form::kDecided,
     .doc = "With `rope_type: yarn`, whether the quotient that `mscale` and `mscale_all_dim` give "
            "multiplies the angles, as in MindFormers 2.0, in place of queries and keys. Where "
            "both are equal it is 1, and this key changes nothing."},
    {.name = "rotary_config.attention_factor",
     .field = f<&M::rotary_config, &R::attention_factor>,
     .form = Form::kTold,
     .check = above(0),
     .doc = "With `rope_type: yarn` or `longrope`, factor of the rotated channels of queries and "
            "keys. null: as the original length and the factor say."},
    {.name = "rotary_config.short_factor",
     .field = f<&M::rotary_config, &R::short_factor>,
     .form = Form::kTold,
     .doc = "With `rope_type: longrope`, divisors of the frequencies in texts of up to "
            "`original_max_position_embeddings` tokens, one for each pair of channels."},
    {.name = "rotary_config.long_factor",
     .field = f<&M::rotary_config, &R::long_factor>,
     .form = Form::kTold,
     .doc = "With `rope_type: longrope`, divisors of the frequencies in longer texts."},
    {.name = "normalization",
     .field = f<&M::normalization>,
     .form = Form::kTold,
     .check = one_of("LayerNorm|RMSNorm"),
     .value_aliases = "FusedRMSNorm=RMSNorm",
     .doc = "Kind of norm before attention, before the MLP and at the end."},
    {.name = "norm_epsilon",
     .field = f<&M::norm_epsilon>,
     .form = Form::kTold,
     .check = above(0),
     .doc = "Number that is added inside the norm's root."},
    {.name = "layernorm_zero_centered_gamma",
     .field = f<&M::layernorm_zero_centered_gamma>,
     .form = Form::kTold,
     .aliases = "apply_layernorm_1p",
     .doc = "Norms multiply by 1 + gain, in float32, and gains start at 0: as Nemotron and Gemma "
            "store them. Holds for every norm of the model."},
    {.name = "norm_has_bias",
     .field = f<&M::norm_has_bias>,
     .form = Form::kDecided,
     .doc = "Whether norms of the kind LayerNorm add a bias. RMSNorm never does."},
    {.name = "norm_has_gain",
     .field = f<&M::norm_has_gain>,
     .form = Form::kDecided,
     .doc = "False: norms of the kind RMSNorm multiply by nothing, as in nanochat."},
    {.name = "embedding_norm",
     .field = f<&M::embedding_norm>,
     .form = Form::kDecided,
     .doc = "Apply a norm to the embeddings, before the first layer."},
    {.name = "norm_placement",
     .field = f<&M::norm_placement>,
     .form = Form::kDecided,
     .check = one_of("pre|post|sandwich|parallel|parallel_one_norm"),
     .default_text = "pre; sandwich with `use_sandwich_norm`",
     .doc = "Where norms stand: of the input of attention and MLP (pre), of their output, before "
            "it is added (post, OLMo 2), or of both (sandwich, Gemma). parallel: attention and MLP "
            "read the same sum, each through its norm (Pythia); parallel_one_norm: through one and "
            "the same (Cohere)."},
    {.name = "mixer_norm_placement",
     .field = f<&M::mixer_norm_placement>,
     .form = Form::kDecided,
     .check = one_of("pre|post|sandwich"),
     .default_text = "norm_placement",
     .doc = "`norm_placement` of the layers without attention (`layer_types`), where they differ, "
            "as in OLMo Hybrid."},
    {.name = "hidden_act",
     .field = f<&M::hidden_act>,
     .form = Form::kTold,
     .check = one_of("gelu|fast_gelu|relu|silu|squared_relu|xielu|swiglu|clamped_swiglu"),
     .registers = ModuleType::kActivationFunc,
     .value_aliases = "fused_swiglu=swiglu",
     .doc = "Activation of the MLP: gelu with erf, fast_gelu with tanh; xielu, with two learned "
            "numbers a layer (Apertus); swiglu = silu(gate) * up; clamped_swiglu, as in GPT-OSS: "
            "min(gate, l) sigmoid(a min(gate, l)) (clamp(up, -l, l) + 1) with `swiglu_limit` l and "
            "`swiglu_alpha` a."},
    {.name = "swiglu_limit",
     .field = f<&M::swiglu_limit>,
     .form = Form::kTold,
     .check = above(0),
     .doc = "With `hidden_act: clamped_swiglu`, the bound of gate and up."},
    {.name = "swiglu_alpha",
     .field = f<&M::swiglu_alpha>,
     .form = Form::kTold,
     .check = above(0),
     .doc = "With `hidden_act: clamped_swiglu`, the factor inside the sigmoid."},
    {.name = "gated_linear_unit",
     .field = f<&M::gated_linear_unit>,
     .form = Form::kTold,
     .default_text = "True for swiglu and clamped_swiglu",
     .doc = "Whether the MLP multiplies two halves, of which one is activated. With True any other "
            "`hidden_act` is the activation of the gate: fast_gelu makes GeGLU, as in Gemma."},
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
     .form = Form::kTold,
     .aliases = "add_qkv_bias",
     .default_text = "add_bias_linear, else True",
     .doc = "Bias of the query, key and value projections."},
    {.name = "out_proj_has_bias",
     .field = f<&M::out_proj_has_bias>,
     .form = Form::kTold,
     .default_text = "add_bias_linear, else True",
     .doc = "Bias of attention's output projection."},
    {.name = "mlp_has_bias",
     .field = f<&M::mlp_has_bias>,
     .form = Form::kTold,
     .default_text = "add_bias_linear, else True",
     .doc = "Biases of the MLP."},
    {.name = "qk_layernorm",
     .field = f<&M::qk_layernorm>,
     .form = Form::kTold,
     .doc = "Normalise queries and keys, by default ahead of the rotation."},
    {.name = "qk_layernorm_scope",
     .field = f<&M::qk_layernorm_scope>,
     .form = Form::kDecided,
     .check = one_of("head|each_head|projection"),
     .doc = "What the norms of `qk_layernorm` go over: `head`, each head, all with one gain; "
            "`each_head`, the same with a gain for each head and no bias (StableLM 2); "
            "`projection`, all heads together (OLMo 2)."},
    {.name = "qk_layernorm_after_rotary",
     .field = f<&M::qk_layernorm_after_rotary>,
     .form = Form::kDecided,
     .doc = "Apply the norms of `qk_layernorm` behind the rotation, as Hunyuan does."},
    {.name = "multi_latent_attention",
     .field = f<&M::multi_latent_attention>,
     .form = Form::kDecided,
     .doc = "Keys and values of all heads are made of one short vector a token, which is what a "
            "cache keeps, and one rotated key that the heads share, as in DeepSeek-V2. Sets "
            "`kv_channels` to `qk_head_dim` + `qk_pos_emb_head_dim`."},
    {.name = "q_lora_rank",
     .field = f<&M::q_lora_rank>,
     .form = Form::kTold,
     .check = kSize,
     .doc =
         "With `multi_latent_attention`, size of the vector that queries are made of. null: they "
         "are projected from the hidden state."},
    {.name = "kv_lora_rank",
     .field = f<&M::kv_lora_rank>,
     .form = Form::kTold,
     .check = kSize,
     .doc = "With `multi_latent_attention`, size of the vector that keys and values are made of."},
    {.name = "qk_head_dim",
     .field = f<&M::qk_head_dim>,
     .form = Form::kTold,
     .check = kSize,
     .aliases = "qk_nope_head_dim",
     .doc = "With `multi_latent_attention`, channels of a head's queries and keys without "
            "rotation."},
    {.name = "qk_pos_emb_head_dim",
     .field = f<&M::qk_pos_emb_head_dim>,
     .form = Form::kTold,
     .check = kSize,
     .aliases = "qk_rope_head_dim",
     .doc = "With `multi_latent_attention`, channels of a head's queries, and of the key that all "
            "heads share, with rotation."},
    {.name = "v_head_dim",
     .field = f<&M::v_head_dim>,
     .form = Form::kTold,
     .check = kSize,
     .doc = "With `multi_latent_attention`, channels of a head's values."},
    {.name = "mtp_num_layers",
     .field = f<&M::mtp_num_layers>,
     .form = Form::kDecided,
     .check = between(0, 64),
     .aliases = "num_nextn_predict_layers",
     .doc = "Layers behind the model's own, the first of which predicts the token after the next "
            "one, and each of the others one token further, as in DeepSeek-V3. They are for "
            "training alone. See docs/mtp.md."},
    {.name = "mtp_loss_scaling_factor",
     .field = f<&M::mtp_loss_scaling_factor>,
     .check = at_least(0),
     .aliases = "mtp_loss_factor",
     .doc = "What the mean of the losses of `mtp_num_layers` is multiplied by when it is added to "
            "the loss."},
    {.name = "enable_hyper_connections",
     .field = f<&M::hyper_connections, &HyperConnectionConfig::enabled>,
     .form = Form::kDecided,
     .doc = "Several residual streams, which each block reads from and writes to by weights that "
            "follow from the streams: manifold-constrained hyper-connections. See "
            "docs/hyper_connections.md."},
    {.name = "num_residual_streams",
     .field = f<&M::hyper_connections, &HyperConnectionConfig::num_streams>,
     .form = Form::kDecided,
     .check = between(1, 16),
     .doc = "How many streams `enable_hyper_connections` makes."},
    {.name = "mhc_sinkhorn_iterations",
     .field = f<&M::hyper_connections, &HyperConnectionConfig::sinkhorn_iterations>,
     .form = Form::kDecided,
     .check = between(1, 1000),
     .doc = "Rounds in which the rows and then the columns of the matrix that mixes streams are "
            "divided by their sums."},
    {.name = "mhc_init_gating_factor",
     .field = f<&M::hyper_connections, &HyperConnectionConfig::init_gating_factor>,
     .doc = "Start value of the three factors by which the streams move the weights away from "
            "their biases."},
    {.name = "mhc_layernorm_epsilon",
     .field = f<&M::hyper_connections, &HyperConnectionConfig::norm_epsilon>,
     .form = Form::kDecided,
     .check = at_least(0),
     .doc = "Epsilon of the norm of the streams that the weights are made of."},
    {.name = "window_size",
     .field = f<&M::window_size>,
     .form = Form::kTold,
     .check = satisfies(check_window, "[L, 0] with L >= 0"),
     .doc = "Sliding window: a token sees itself and this many tokens before it. null: all tokens "
            "before it."},
    {.name = "layer_types",
     .field = f<&M::layer_types>,
     .form = Form::kDecided,
     .check = satisfies(check_layer_types,
                        "full_attention, sliding_attention, linear_attention, conv or mamba, for "
                        "each layer"),
     .doc = "Kind of each layer: `sliding_attention` sees the tokens of `window_size` alone, "
            "`full_attention` all tokens before its own. The others have no attention but a state "
            "that goes from token to token: `linear_attention` a gated delta net, `conv` a gated "
            "short convolution, `mamba` a Mamba-2 layer. One kind stands for all layers. null: "
            "all layers have attention, with the window if there is one."},
    {.name = "sliding_window_pattern",
     .field = f<&M::sliding_window_pattern>,
     .check = kSize,
     .until_resolved = true,
     .doc = "Short for `layer_types`: every so many-th layer is `full_attention`, the others are "
            "`sliding_attention`."},
    {.name = "no_rope_layers",
     .field = f<&M::no_rope_layers>,
     .form = Form::kDecided,
     .check = satisfies(check_rotated_layers, "one 0 or 1 per layer"),
     .doc = "1 for each layer whose queries and keys are rotated, 0 for the others, as SmolLM3 "
            "writes it. null: all are. Needs `position_embedding_type: rope`."},
    {.name = "clip_qkv",
     .field = f<&M::clip_qkv>,
     .form = Form::kDecided,
     .check = above(0),
     .doc = "Bound to which queries, keys and values are clipped behind their projections and "
            "norms, as in OLMoE. null: none."},
    {.name = "attention_sinks",
     .field = f<&M::attention_sinks>,
     .form = Form::kDecided,
     .doc = "A learned number for each head takes part in the softmax and has no value, so that a "
            "token need not attend to anything, as in GPT-OSS."},
    {.name = "attention_output_gate",
     .field = f<&M::attention_output_gate>,
     .form = Form::kDecided,
     .doc =
         "What the heads of a layer with attention give is multiplied by sigmoid(u) before the "
         "output projection, u being one more projection of the layer's input, as in Qwen3-Next."},
    {.name = "linear_num_key_heads",
     .field = f<&M::linear_attention, &L::num_key_heads>,
     .form = Form::kDecided,
     .check = kSize,
     .doc = "Layers of the kind `linear_attention`: heads of queries and keys."},
    {.name = "linear_num_value_heads",
     .field = f<&M::linear_attention, &L::num_value_heads>,
     .form = Form::kDecided,
     .check = kSize,
     .doc = "Heads of values, each with a state of its own; a multiple of "
            "`linear_num_key_heads`, whose heads several share."},
    {.name = "linear_key_head_dim",
     .field = f<&M::linear_attention, &L::key_head_dim>,
     .form = Form::kDecided,
     .check = kSize,
     .doc = "Channels of a query and of a key of `linear_attention`."},
    {.name = "linear_value_head_dim",
     .field = f<&M::linear_attention, &L::value_head_dim>,
     .form = Form::kDecided,
     .check = kSize,
     .doc = "Channels of a value of `linear_attention`."},
    {.name = "linear_conv_kernel_dim",
     .field = f<&M::linear_attention, &L::conv_kernel_dim>,
     .form = Form::kDecided,
     .check = between(1, 64),
     .doc = "Tokens, the last of them its own, that the short convolution of queries, keys and "
            "values sees."},
    {.name = "linear_allow_neg_eigval",
     .field = f<&M::linear_attention, &L::allow_neg_eigval>,
     .form = Form::kDecided,
     .doc = "A token may overwrite twice what the state has for its key: beta is 2 sigmoid(b), so "
            "that the state's transition may have negative eigenvalues, as in OLMo Hybrid."},
    {.name = "linear_norm_epsilon",
     .field = f<&M::linear_attention, &L::norm_epsilon>,
     .form = Form::kDecided,
     .check = above(0),
     .default_text = "norm_epsilon",
     .doc = "Added to the mean square in the norm of what the heads of `linear_attention` give."},
    {.name = "short_conv_kernel_dim",
     .field = f<&M::short_conv, &C::kernel_dim>,
     .form = Form::kDecided,
     .check = between(1, 64),
     .doc = "Layers of the kind `conv`: tokens, the last of them its own, that the convolution "
            "sees."},
    {.name = "short_conv_has_bias",
     .field = f<&M::short_conv, &C::has_bias>,
     .form = Form::kDecided,
     .doc = "Whether the matrices and the convolution of layers of the kind `conv` have biases."},
    {.name = "mamba_num_heads",
     .field = f<&M::mamba, &S::num_heads>,
     .form = Form::kDecided,
     .check = kSize,
     .default_text = "2 hidden_size / mamba_head_dim",
     .doc = "Layers of the kind `mamba`: heads, each with a state of its own."},
    {.name = "mamba_head_dim",
     .field = f<&M::mamba, &S::head_dim>,
     .form = Form::kDecided,
     .check = kSize,
     .doc = "Channels of a head of `mamba`."},
    {.name = "mamba_num_groups",
     .field = f<&M::mamba, &S::num_groups>,
     .form = Form::kDecided,
     .check = kSize,
     .doc = "Groups of heads of `mamba` that share what is written to the state and read from it "
            "(B and C); the output is normed over each group. Divides `mamba_num_heads`."},
    {.name = "mamba_state_dim",
     .field = f<&M::mamba, &S::state_dim>,
     .form = Form::kDecided,
     .check = kSize,
     .doc = "Numbers that the state of `mamba` keeps for each channel."},
    {.name = "mamba_conv_kernel_dim",
     .field = f<&M::mamba, &S::conv_kernel_dim>,
     .form = Form::kDecided,
     .check = between(1, 64),
     .doc = "Tokens, the last of them its own, that the short convolution of `mamba` sees."},
    {.name = "mamba_conv_has_bias",
     .field = f<&M::mamba, &S::conv_has_bias>,
     .form = Form::kDecided,
     .doc = "Whether the convolution of `mamba` has a bias."},
    {.name = "mamba_proj_has_bias",
     .field = f<&M::mamba, &S::proj_has_bias>,
     .form = Form::kDecided,
     .doc = "Whether the matrices of `mamba` have biases."},
    {.name = "mamba_time_step_limit",
     .field = f<&M::mamba, &S::time_step_limit>,
     .form = Form::kDecided,
     .check = satisfies(check_time_step_limit, "[least, most]"),
     .doc = "Bounds of a token's time step in `mamba`. null: none."},
    {.name = "v_layernorm",
     .field = f<&M::v_layernorm>,
     .form = Form::kDecided,
     .doc = "Divide each head's values by their root mean square, without a gain, as Gemma 4 "
            "does."},
    {.name = "attention_scale",
     .field = f<&M::attention_scale>,
     .form = Form::kDecided,
     .default_text = "1 / sqrt(kv_channels)",
     .doc = "What products of queries and keys are multiplied by."},
    {.name = "attention_softcap",
     .field = f<&M::attention_softcap>,
     .form = Form::kDecided,
     .check = at_least(0),
     .doc = "Bound c of attention scores s, which become c tanh(s / c), as in Gemma 2. 0: none."},
    {.name = "query_temperature_beta",
     .field = f<&M::query_temperature_beta>,
     .form = Form::kDecided,
     .check = at_least(0),
     .doc = "Queries at position p are multiplied by 1 + this number * ln(1 + floor(p / L)), L "
            "being `rotary_config.original_max_position_embeddings`, as in Ministral 3. 0: they "
            "are not."},
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
     .form = Form::kTold,
     .check = between(0, 1),
     .doc = "Dropout of attention probabilities."},
    {.name = "hidden_dropout",
     .field = f<&M::hidden_dropout>,
     .form = Form::kTold,
     .check = between(0, 1),
     .doc = "Dropout after the embedding, attention and the MLP."},
    {.name = "untie_embeddings_and_output_weights",
     .field = f<&M::untie_embeddings_and_output_weights>,
     .form = Form::kTold,
     .doc = "True: the head has its own matrix. False: it uses the token table."},
    {.name = "score_head",
     .field = f<&M::score_head>,
     .form = Form::kTold,
     .doc =
         "True: a reward model, whose last layer gives each token one value (`score`, "
         "[1, hidden_size] without bias) in place of logits. `post_training_config.task: reward` "
         "sets it, and `from_hf` with a folder for sequence classification."},
    {.name = "init_method",
     .field = f<&M::init_method>,
     .check = satisfies(check_initializer, "a distribution, or a constant"),
     .aliases = "init_method_type",
     .doc = "Initial weights: `normal`, `truncatednormal` (cut at two deviations) or `uniform` of "
            "deviation `init_method_std`; `xavier_uniform`, `he_uniform` or `he_normal` by the "
            "matrix's sizes; `zeros`, `ones` or a number."},
    {.name = "init_method_std",
     .field = f<&M::init_method_std>,
     .form = Form::kTold,
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
     .form = Form::kTold,
     .doc = "Take the residual from the norm's output instead of its input."},
    {.name = "use_final_norm",
     .field = f<&M::use_final_norm>,
     .form = Form::kTold,
     .doc = "Apply a norm after the last layer."},
    {.name = "use_sandwich_norm",
     .field = f<&M::use_sandwich_norm>,
     .form = Form::kTold,
     .default_text = "norm_placement == sandwich",
     .doc = "Short for `norm_placement: sandwich`: norms after attention and MLP in addition to "
            "those before them."},
    {.name = "attn_post_norm_scale",
     .field = f<&M::attn_post_norm_scale>,
     .check = between(0, 1),
     .doc = "Initial gain of the norm after attention, where `norm_placement` has one."},
    {.name = "ffn_post_norm_scale",
     .field = f<&M::ffn_post_norm_scale>,
     .check = between(0, 1),
     .doc = "Initial gain of the norm after the MLP, where `norm_placement` has one."},
    {.name = "embedding_multiplier",
     .field = f<&M::embedding_multiplier>,
     .form = Form::kDecided,
     .check = above(0),
     .doc = "What embeddings are multiplied by (Gemma: the root of `hidden_size`)."},
    {.name = "residual_multiplier",
     .field = f<&M::residual_multiplier>,
     .form = Form::kDecided,
     .check = above(0),
     .doc = "What the output of attention and MLP is multiplied by before it is added (Granite)."},
    {.name = "logit_multiplier",
     .field = f<&M::logit_multiplier>,
     .form = Form::kDecided,
     .check = above(0),
     .doc = "What logits are multiplied by (Cohere; Granite divides by `logits_scaling`)."},
    {.name = "logit_softcap",
     .field = f<&M::logit_softcap>,
     .form = Form::kDecided,
     .check = at_least(0),
     .doc = "Bound c of logits z, which become c tanh(z / c), as in Gemma 2. 0: none."},
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
