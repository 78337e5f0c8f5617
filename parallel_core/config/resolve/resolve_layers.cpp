// Where layers differ from each other, and where their norms stand.
#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {

namespace {

constexpr const char* kLayers = "model_config.num_layers";
constexpr const char* kTypes = "model_config.layer_types";
constexpr const char* kPattern = "model_config.sliding_window_pattern";
constexpr const char* kWindow = "model_config.window_size";
constexpr const char* kRotated = "model_config.no_rope_layers";
constexpr const char* kPositions = "model_config.position_embedding_type";
constexpr const char* kSlidingBase = "model_config.rotary_config.sliding_rotary_base";
constexpr const char* kPlacement = "model_config.norm_placement";
constexpr const char* kFullChannels = "model_config.full_attention_kv_channels";
constexpr const char* kFullGroups = "model_config.full_attention_num_query_groups";
constexpr const char* kFullValues = "model_config.full_attention_value_is_key";
constexpr const char* kShared = "model_config.num_kv_shared_layers";
constexpr const char* kPerLayer = "model_config.per_layer_embedding_size";
constexpr const char* kSandwich = "model_config.use_sandwich_norm";
constexpr const char* kPostResidual = "model_config.apply_residual_connection_post_norm";

// One entry stands for all layers. False, with an error, for another number of entries than layers.
template <class T>
bool stretch(Resolution& r, const char* key, std::vector<T>& list) {
  const auto layers = static_cast<size_t>(r.config().model_config.num_layers);
  if (list.size() == 1) {
    list.resize(layers, list.front());
  }
  if (list.size() != layers) {
    r.error(key, concat("has ", list.size(), " entries for ", layers,
                        " layers; give one to each, or one for all"));
  }
  return list.size() == layers;
}

void resolve_pattern(Resolution& r) {
  TransformerConfig& model = r.config().model_config;
  if (!r.sound({kPattern, kLayers}) || !model.sliding_window_pattern) {
    return;
  }
  std::vector<std::string> kinds;
  for (int64_t layer = 1; layer <= model.num_layers; ++layer) {
    kinds.emplace_back(layer % *model.sliding_window_pattern == 0 ? "full_attention"
                                                                  : "sliding_attention");
  }
  if (model.layer_types && *model.layer_types != kinds) {
    r.error(kPattern, concat("is ", *model.sliding_window_pattern,
                             ", but layer_types has other kinds; keep one of them"));
  }
  model.layer_types = std::move(kinds);
  model.sliding_window_pattern.reset();
  r.derived(kTypes, kPattern);
}

void resolve_kinds(Resolution& r) {
  TransformerConfig& model = r.config().model_config;
  if (!r.sound({kTypes, kLayers, kWindow}) || !model.layer_types ||
      !stretch(r, kTypes, *model.layer_types)) {
    return;
  }
  const auto sliding =
      std::count(model.layer_types->begin(), model.layer_types->end(), "sliding_attention");
  if (sliding > 0 && !model.window_size) {
    r.error(kTypes, concat("has ", sliding,
                           " layers of the kind sliding_attention, which need a window_size"));
  } else if (sliding == 0) {
    r.idle(kWindow, "without layers of the kind sliding_attention");
    model.window_size.reset();
  }
  const bool own_sizes = model.full_attention_kv_channels ||
                         model.full_attention_num_query_groups || model.full_attention_value_is_key;
  if (!has_recurrent_layers(model) &&
      ((sliding == 0 && !own_sizes) || sliding == model.num_layers)) {
    model.layer_types.reset();  // all alike
  }
}

// What layers of the kind full_attention have for themselves.
void resolve_full_attention(Resolution& r) {
  TransformerConfig& model = r.config().model_config;
  if (!r.sound({kTypes, kPattern, kLayers, kWindow})) {
    return;
  }
  const bool has_kind =
      model.layer_types &&
      std::count(model.layer_types->begin(), model.layer_types->end(), "full_attention") > 0;
  if (!has_kind) {
    for (const char* key : {kFullChannels, kFullGroups, kFullValues}) {
      r.idle(key, "without layer_types that have layers of the kind full_attention");
    }
    model.full_attention_kv_channels.reset();
    model.full_attention_num_query_groups.reset();
    model.full_attention_value_is_key = false;
    return;
  }
  const int64_t groups = model.full_attention_num_query_groups.value_or(1);
  if (r.sound({kFullGroups, "model_config.num_attention_heads"}) &&
      model.num_attention_heads % groups != 0) {
    r.error(kFullGroups,
            concat(groups, " does not divide num_attention_heads ", model.num_attention_heads));
  }
  if (r.sound({kFullChannels, kPositions}) && model.position_embedding_type == "rope" &&
      model.full_attention_kv_channels) {
    const double share =
        model.rotary_config.rope_type == "proportional" ? 1 : model.rotary_config.rotary_percent;
    const auto rotated =
        static_cast<int64_t>(static_cast<double>(*model.full_attention_kv_channels) * share);
    if (rotated < 2 || rotated % 2 != 0) {
      r.error(kFullChannels,
              concat(*model.full_attention_kv_channels, " channels a head give ", rotated,
                     " rotated channels; an even number above 0 is needed"));
    }
  }
}

// Layers with the keys and values of others.
void resolve_shared_keys(Resolution& r) {
  const TransformerConfig& model = r.config().model_config;
  constexpr const char* kWide = "model_config.use_double_wide_mlp";
  if (!r.sound({kShared, kTypes, kPattern, kLayers, kWindow})) {
    return;
  }
  if (model.num_kv_shared_layers == 0) {
    r.idle(kWide, "without num_kv_shared_layers");
    return;
  }
  if (model.num_kv_shared_layers >= model.num_layers) {
    r.error(kShared, concat("is ", model.num_kv_shared_layers, " of ", model.num_layers,
                            " layers; some must have keys and values of their own"));
    return;
  }
  for (int64_t layer = model.num_layers - model.num_kv_shared_layers; layer < model.num_layers;
       ++layer) {
    if (mixer_kind(model, layer) == MixerKind::kAttention && !keys_from(model, layer)) {
      r.error(kShared,
              concat("is ", model.num_kv_shared_layers, ", but before these no layer is of ",
                     "the kind ", model.layer_types->at(static_cast<size_t>(layer)), ", as layer ",
                     layer, " is, whose keys and values it could have"));
      return;
    }
  }
}

void resolve_per_layer_embeddings(Resolution& r) {
  const TransformerConfig& model = r.config().model_config;
  constexpr const char* kRows = "model_config.per_layer_vocab_size";
  constexpr const char* kVocabulary = "model_config.vocab_size";
  if (!r.sound({kPerLayer, kRows, kVocabulary})) {
    return;
  }
  if (model.per_layer_embedding_size == 0) {
    r.idle(kRows, "without per_layer_embedding_size");
  } else if (per_layer_vocab_size(model) < model.vocab_size) {
    r.error(kRows, concat("is ", per_layer_vocab_size(model), ", less than vocab_size ",
                          model.vocab_size, ": the last tokens would have no row"));
  }
}

// What multi-latent attention cannot have of these.
void check_latent(Resolution& r) {
  const TransformerConfig& model = r.config().model_config;
  if (!r.sound({"model_config.multi_latent_attention"}) || !model.multi_latent_attention) {
    return;
  }
  for (const auto& [key, given] :
       {std::pair{kFullChannels, model.full_attention_kv_channels.has_value()},
        std::pair{kFullGroups, model.full_attention_num_query_groups.has_value()},
        std::pair{kFullValues, model.full_attention_value_is_key},
        std::pair{kShared, model.num_kv_shared_layers > 0},
        std::pair{"model_config.v_layernorm", model.v_layernorm}}) {
    if (given && r.sound({key})) {
      r.error(key, "is not built with multi_latent_attention; leave it out");
    }
  }
}

// A multiple of the other key's value.
void check_multiple(Resolution& r, const char* key, int64_t value, const char* of, int64_t unit) {
  if (value % unit != 0) {
    r.error(concat("model_config.", key),
            concat("is ", value, ", but must be a multiple of ", of, " = ", unit));
  }
}

// What layers without attention need; their keys say nothing without such layers.
void resolve_mixers(Resolution& r) {
  TransformerConfig& model = r.config().model_config;
  if (!r.sound({kTypes, kLayers})) {
    return;
  }
  const auto idle_keys = [&](MixerKind kind, const char* type,
                             std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (!has_mixer(model, kind)) {
        r.idle(concat("model_config.", key), concat("without layers of the kind ", type));
      }
    }
  };
  idle_keys(MixerKind::kGatedDelta, "linear_attention",
            {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
             "linear_value_head_dim", "linear_conv_kernel_dim", "linear_allow_neg_eigval",
             "linear_norm_epsilon"});
  idle_keys(MixerKind::kShortConv, "conv", {"short_conv_kernel_dim", "short_conv_has_bias"});
  idle_keys(MixerKind::kMamba, "mamba",
            {"mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim",
             "mamba_conv_kernel_dim", "mamba_conv_has_bias", "mamba_proj_has_bias",
             "mamba_time_step_limit"});
  idle_keys(MixerKind::kAttention, "full_attention", {"attention_output_gate"});
  constexpr const char* kMixerPlacement = "model_config.mixer_norm_placement";
  if (!has_recurrent_layers(model)) {
    r.idle(kMixerPlacement, "without layers of the kinds linear_attention, conv and mamba");
    model.mixer_norm_placement.reset();
    return;
  }
  constexpr const char* kMask = "model_config.encoder_attn_mask_type";
  if (r.sound({kMask}) && model.encoder_attn_mask_type == "padding") {
    r.error(kMask,
            "is padding, but layers of the kinds linear_attention, conv and mamba see all "
            "tokens before their own: a mask cannot hide any; use causal");
  }
  if (model.apply_residual_connection_post_norm && model.mixer_norm_placement == "post") {
    r.error(kPostResidual,
            "takes the residual from the norm before a block, which "
            "mixer_norm_placement: post has not; leave this key out");
  }
  if (has_mixer(model, MixerKind::kGatedDelta) &&
      r.sound({"model_config.linear_num_value_heads", "model_config.linear_num_key_heads"})) {
    check_multiple(r, "linear_num_value_heads", model.linear_attention.num_value_heads,
                   "linear_num_key_heads", model.linear_attention.num_key_heads);
  }
  if (has_mixer(model, MixerKind::kMamba) &&
      r.sound({"model_config.mamba_num_heads", "model_config.mamba_head_dim",
               "model_config.mamba_num_groups", "model_config.hidden_size"})) {
    MambaConfig& mamba = model.mamba;
    if (!mamba.num_heads) {
      check_multiple(r, "hidden_size", 2 * model.hidden_size, "mamba_head_dim", mamba.head_dim);
      mamba.num_heads = std::max<int64_t>(2 * model.hidden_size / mamba.head_dim, 1);
      r.derived("model_config.mamba_num_heads", "model_config.hidden_size");
    }
    check_multiple(r, "mamba_num_heads", *mamba.num_heads, "mamba_num_groups", mamba.num_groups);
  }
}

void resolve_rotated(Resolution& r) {
  TransformerConfig& model = r.config().model_config;
  if (!r.sound({kRotated, kLayers, kPositions}) || !model.no_rope_layers) {
    return;
  }
  if (model.position_embedding_type != "rope") {
    r.idle(kRotated, concat("with position_embedding_type ", model.position_embedding_type));
    model.no_rope_layers.reset();
  } else if (stretch(r, kRotated, *model.no_rope_layers)) {
    const auto& rotated = *model.no_rope_layers;
    if (std::count(rotated.begin(), rotated.end(), 0) == model.num_layers) {
      r.error(kRotated, "rotates no layer; use position_embedding_type: none");
    } else if (std::count(rotated.begin(), rotated.end(), 1) == model.num_layers) {
      model.no_rope_layers.reset();
    }
  }
}

void resolve_sliding_base(Resolution& r) {
  const TransformerConfig& model = r.config().model_config;
  if (r.sound({kSlidingBase, kWindow, kTypes, kPositions}) &&
      (model.position_embedding_type != "rope" || !model.window_size)) {
    r.idle(kSlidingBase, "without rotated layers that have a window");
  }
}

// The two spellings of norms on both sides.
void resolve_placement(Resolution& r) {
  TransformerConfig& model = r.config().model_config;
  if (!r.sound({kPlacement, kSandwich})) {
    return;
  }
  const bool sandwich = model.norm_placement == "sandwich";
  if (model.use_sandwich_norm && !sandwich && r.given(kPlacement)) {
    r.error(kSandwich,
            concat("is True, but norm_placement is ", model.norm_placement, "; keep one of them"));
  } else if (sandwich && !model.use_sandwich_norm && r.given(kSandwich)) {
    r.error(kSandwich, "is False, but norm_placement is sandwich; keep one of them");
  } else if (model.use_sandwich_norm && !sandwich) {
    model.norm_placement = "sandwich";
    r.derived(kPlacement, kSandwich);
  } else if (sandwich && !model.use_sandwich_norm) {
    model.use_sandwich_norm = true;
    r.derived(kSandwich, kPlacement);
  }
  if (r.sound({kPostResidual}) && model.apply_residual_connection_post_norm &&
      model.norm_placement != "pre" && model.norm_placement != "sandwich") {
    r.error(kPostResidual,
            concat("takes the residual from the norm before a block, which norm_placement ",
                   model.norm_placement, " has not for both; leave this key out"));
  }
  for (const char* key :
       {"model_config.attn_post_norm_scale", "model_config.ffn_post_norm_scale"}) {
    if (r.sound({kTypes, kLayers}) && !norms_outputs_somewhere(model)) {
      r.idle(key, concat("with norm_placement ", model.norm_placement));
    }
  }
}

void resolve_norms(Resolution& r) {
  const TransformerConfig& model = r.config().model_config;
  constexpr const char* kNormalization = "model_config.normalization";
  constexpr const char* kBias = "model_config.norm_has_bias";
  constexpr const char* kGain = "model_config.norm_has_gain";
  constexpr const char* kScope = "model_config.qk_layernorm_scope";
  constexpr const char* kAfter = "model_config.qk_layernorm_after_rotary";
  if (r.sound({kNormalization, kBias, kGain})) {
    if (model.normalization == "RMSNorm") {
      r.idle(kBias, "with normalization RMSNorm, which has no bias");
    } else if (!model.norm_has_gain) {
      r.error(kGain, "is False, which normalization: RMSNorm alone can be");
    }
    if (!model.norm_has_gain && model.layernorm_zero_centered_gamma) {
      r.error(kGain, "is False, but layernorm_zero_centered_gamma speaks of a gain; keep one");
    }
  }
  if (!model.qk_layernorm) {
    r.idle(kScope, "without qk_layernorm");
    r.idle(kAfter, "without qk_layernorm");
    return;
  }
  if (r.sound({kScope, kNormalization}) && model.qk_layernorm_scope != "head" &&
      (!model.norm_has_gain || model.layernorm_zero_centered_gamma)) {
    r.error(kScope, concat("is ", model.qk_layernorm_scope,
                           ", whose gains are stored as they are: neither without norm_has_gain "
                           "nor with layernorm_zero_centered_gamma"));
  } else if (r.sound({kScope, kNormalization}) && model.qk_layernorm_scope == "projection" &&
             model.normalization == "LayerNorm") {
    r.error(kScope, "is projection, which needs normalization: RMSNorm");
  }
}

void resolve_temperature(Resolution& r) {
  const TransformerConfig& model = r.config().model_config;
  constexpr const char* kBeta = "model_config.query_temperature_beta";
  if (r.sound({kBeta, kPositions}) && model.query_temperature_beta > 0 &&
      model.position_embedding_type != "rope") {
    r.error(kBeta,
            concat("needs position_embedding_type: rope, got ", model.position_embedding_type));
  }
}

}  // namespace

void resolve_layers(Resolution& r) {
  resolve_pattern(r);
  resolve_kinds(r);
  resolve_full_attention(r);
  resolve_shared_keys(r);
  resolve_per_layer_embeddings(r);
  check_latent(r);
  resolve_mixers(r);
  resolve_rotated(r);
  resolve_sliding_base(r);
  resolve_placement(r);
  resolve_norms(r);
  resolve_temperature(r);
}

}  // namespace tapestry::config
