#include "parallel_core/config/resolve/resolve.h"

#include <cmath>

#include "autograd/tensor/error.h"
#include "parallel_core/config/layer_split.h"
#include "parallel_core/config/recompute_tables.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {
namespace {

constexpr const char* kHeads = "model_config.num_attention_heads";
constexpr const char* kGroups = "model_config.num_query_groups";
constexpr const char* kGroupsOfFull = "model_config.full_attention_num_query_groups";
constexpr const char* kHidden = "model_config.hidden_size";
constexpr const char* kSeq = "model_config.seq_length";
constexpr const char* kCp = "parallel_config.context_parallel_size";
constexpr const char* kCompute = "model_config.compute_dtype";

void set_compute_dtype(Resolution& r, const char* flag, DType dtype) {
  if (r.given(kCompute) && r.config().model_config.compute_dtype != dtype) {
    r.error(kCompute, concat("is ", name_of(r.config().model_config.compute_dtype), ", but ", flag,
                             ": True sets ", name_of(dtype), "; keep one of them"));
    return;
  }
  r.config().model_config.compute_dtype = dtype;
  r.derived(kCompute, flag);
}

void resolve_dtypes(Resolution& r) {
  const auto& training = r.config().training_config;
  auto& model = r.config().model_config;
  if (r.sound({"training_config.fp16", "training_config.bf16", kCompute})) {
    if (training.fp16 && training.bf16) {
      r.error("training_config.fp16", "fp16 and bf16 cannot both be True; choose one");
    } else if (training.bf16) {
      set_compute_dtype(r, "training_config.bf16", kBFloat16);
    } else if (training.fp16) {
      set_compute_dtype(r, "training_config.fp16", kFloat16);
    }
  }
  constexpr const char* kParams = "model_config.params_dtype";
  if (r.sound({kParams, kCompute}) && model.params_dtype != kFloat32) {
    if (model.params_dtype != model.compute_dtype) {
      r.error(kParams, concat("is ", name_of(model.params_dtype), ", compute_dtype is ",
                              name_of(model.compute_dtype),
                              "; 16-bit parameters need the same compute_dtype"));
    } else if (!model.use_fused_kernels) {
      r.error(kParams,
              concat("is ", name_of(model.params_dtype), ", which needs use_fused_kernels: True"));
    }
  }
  if (model.fp16_lm_cross_entropy && model.compute_dtype != kFloat16) {
    r.error("model_config.fp16_lm_cross_entropy",
            concat("needs compute_dtype float16, it is ", name_of(model.compute_dtype)));
  }
  auto& recv = r.config().parallel_config.recv_dtype;
  if (recv != model.compute_dtype) {
    if (r.given("parallel_config.recv_dtype")) {
      r.note("parallel_config.recv_dtype", concat(name_of(recv), " replaced by the compute dtype ",
                                                  name_of(model.compute_dtype)));
    }
    recv = model.compute_dtype;
    r.derived("parallel_config.recv_dtype", kCompute);
  }
}

// Multi-latent attention has sizes of its own.
void resolve_latent(Resolution& r) {
  auto& model = r.config().model_config;
  constexpr const char* kLatent = "model_config.multi_latent_attention";
  constexpr const char* kNope = "model_config.qk_head_dim";
  constexpr const char* kRotated = "model_config.qk_pos_emb_head_dim";
  constexpr const char* kChannels = "model_config.kv_channels";
  if (!r.sound({kLatent, kNope, kRotated, kChannels})) {
    return;
  }
  if (!model.multi_latent_attention) {
    for (const char* key : {"model_config.q_lora_rank", "model_config.kv_lora_rank", kNope,
                            kRotated, "model_config.v_head_dim"}) {
      r.idle(key, "without multi_latent_attention");
    }
    return;
  }
  const int64_t channels = model.qk_head_dim + model.qk_pos_emb_head_dim;
  if (model.kv_channels && *model.kv_channels != channels && r.given(kChannels)) {
    r.error(kChannels, concat("is ", *model.kv_channels, ", but with multi_latent_attention it is ",
                              "qk_head_dim + qk_pos_emb_head_dim = ", channels, "; leave it out"));
  }
  model.kv_channels = channels;
  r.derived(kChannels, kLatent);
  if (model.qk_pos_emb_head_dim % 2 != 0) {
    r.error(kRotated, concat("is ", model.qk_pos_emb_head_dim,
                             ", but channels are rotated in pairs; use an even number"));
  }
  const auto needs = [&](const char* key, bool holds, const std::string& message) {
    if (r.sound({key}) && !holds) {
      r.error(key, concat(message, " with multi_latent_attention"));
    }
  };
  needs("model_config.position_embedding_type", model.position_embedding_type == "rope",
        concat("is ", model.position_embedding_type, ", and has to be rope"));
  needs(kGroups, model.num_query_groups == model.num_attention_heads,
        "has no use: all heads share one vector; leave it out");
  needs("model_config.rotary_config.rotary_percent", model.rotary_config.rotary_percent == 1,
        "is said by qk_pos_emb_head_dim; leave it out");
  needs("model_config.qk_layernorm", !model.qk_layernorm,
        "is True, but the norms are those of the short vectors; leave it out");
  needs("model_config.attention_sinks", !model.attention_sinks, "are not built; leave it out");
  needs("model_config.clip_qkv", !model.clip_qkv, "is not built; leave it out");
  needs("model_config.query_temperature_beta", model.query_temperature_beta == 0,
        "is not built; leave it out");
  needs("model_config.no_rope_layers", !model.no_rope_layers, "is not built; leave it out");
}

void resolve_heads(Resolution& r) {
  auto& model = r.config().model_config;
  if (!r.sound({kHeads, kGroups, "model_config.group_query_attention"})) {
    return;
  }
  if (!model.group_query_attention && model.num_query_groups != model.num_attention_heads) {
    if (r.given(kGroups) && !r.given("model_config.group_query_attention")) {
      r.error(kGroups, concat("is ", model.num_query_groups, " for ", model.num_attention_heads,
                              " heads, which needs group_query_attention: True"));
      return;
    }
    if (r.given(kGroups)) {
      r.note(kGroups, concat(model.num_query_groups, " has no effect with group_query_attention: ",
                             "False; every head has keys and values of its own"));
    }
    model.num_query_groups = model.num_attention_heads;
    r.derived(kGroups, kHeads);
  }
  if (model.num_attention_heads % model.num_query_groups != 0) {
    r.error(kGroups, concat(model.num_query_groups, r.given(kGroups) ? "" : " (the default)",
                            " does not divide num_attention_heads ", model.num_attention_heads));
  }
  resolve_latent(r);
  if (!model.kv_channels && r.sound({kHidden, "model_config.kv_channels"})) {
    if (model.hidden_size % model.num_attention_heads != 0) {
      r.error(kHeads, concat(model.num_attention_heads, " does not divide hidden_size ",
                             model.hidden_size, "; change one of them or set kv_channels"));
      return;
    }
    model.kv_channels = model.hidden_size / model.num_attention_heads;
    r.derived("model_config.kv_channels", "hidden_size / num_attention_heads");
  }
}

// The two spellings of ALiBi.
void resolve_alibi(Resolution& r) {
  auto& model = r.config().model_config;
  constexpr const char* kType = "model_config.position_embedding_type";
  constexpr const char* kAlibi = "model_config.use_alibi_mask";
  if (!r.sound({kType, kAlibi}) ||
      model.use_alibi_mask == (model.position_embedding_type == "alibi")) {
    return;
  }
  if (!model.use_alibi_mask && !r.given(kAlibi)) {
    model.use_alibi_mask = true;
    r.derived(kAlibi, kType);
  } else if (model.use_alibi_mask && !r.given(kType)) {
    model.position_embedding_type = "alibi";
    r.derived(kType, kAlibi);
  } else {
    r.error(kAlibi, concat("is ", model.use_alibi_mask ? "True" : "False",
                           ", but position_embedding_type is ", model.position_embedding_type,
                           "; keep one of them"));
  }
}

void resolve_positions(Resolution& r) {
  auto& model = r.config().model_config;
  constexpr const char* kMax = "model_config.max_position_embeddings";
  constexpr const char* kType = "model_config.position_embedding_type";
  constexpr const char* kParallel = "model_config.parallel_position_embedding";
  resolve_alibi(r);
  if (r.sound({kType}) && model.parallel_position_embedding &&
      model.position_embedding_type != "learned_absolute") {
    r.idle(kParallel, concat("with position_embedding_type ", model.position_embedding_type));
  }
  if (r.sound({kSeq, kMax})) {
    if (!model.max_position_embeddings) {
      model.max_position_embeddings = model.seq_length;
      r.derived(kMax, kSeq);
    }
    if (r.sound({kType}) && model.position_embedding_type == "learned_absolute" &&
        *model.max_position_embeddings < model.seq_length) {
      r.error(kMax, concat("is ", *model.max_position_embeddings, ", less than seq_length ",
                           model.seq_length, ": the last positions would have no row"));
    }
  }
  constexpr const char* kPercent = "model_config.rotary_config.rotary_percent";
  if (model.kv_channels && r.sound({kType, kPercent, "model_config.kv_channels"}) &&
      model.position_embedding_type == "rope") {
    const bool proportional = model.rotary_config.rope_type == "proportional";
    const auto rotated =
        static_cast<int64_t>(static_cast<double>(*model.kv_channels) *
                             (proportional ? 1.0 : model.rotary_config.rotary_percent));
    if (rotated < 2 || rotated % 2 != 0) {
      r.error(r.given(kPercent) ? kPercent : kHeads,
              concat("rotary_percent ", number_text(model.rotary_config.rotary_percent), " of ",
                     *model.kv_channels, " channels a head gives ", rotated,
                     " rotated channels; an even number above 0 is needed"));
    }
  }
  resolve_rotary(r);
}

void resolve_mlp(Resolution& r) {
  auto& model = r.config().model_config;
  constexpr const char* kGated = "model_config.gated_linear_unit";
  if (r.sound({"model_config.hidden_act", kGated})) {
    constexpr const char* kAct = "model_config.hidden_act";
    if (is_gated(model.hidden_act) && !model.gated_linear_unit) {
      if (r.given(kGated)) {
        r.error(kGated, concat("is False, but hidden_act ", model.hidden_act,
                               " is gated. Leave this key out"));
      }
      model.gated_linear_unit = true;
      r.derived(kGated, kAct);
    }
    if (model.gated_linear_unit && model.hidden_act == "silu") {
      model.hidden_act = "swiglu";
      r.derived(kAct, kGated);
    } else if (model.gated_linear_unit && model.hidden_act == "xielu") {
      r.error(kGated, "is True, but hidden_act xielu has no gate. Leave this key out");
    }
    if (model.apply_swiglu_fusion.value_or(false) && model.hidden_act != "swiglu") {
      r.error("model_config.apply_swiglu_fusion",
              concat("needs hidden_act: swiglu, got ", model.hidden_act));
    }
    for (const char* key : {"model_config.swiglu_limit", "model_config.swiglu_alpha"}) {
      if (model.hidden_act != "clamped_swiglu") {
        r.idle(key, concat("with hidden_act ", model.hidden_act));
      }
    }
  }
  if (model.add_bias_linear) {
    const auto follow = [&](const char* key, bool& member) {
      if (!r.given(key)) {
        member = *model.add_bias_linear;
        r.derived(key, "model_config.add_bias_linear");
      }
    };
    follow("model_config.qkv_has_bias", model.qkv_has_bias);
    follow("model_config.out_proj_has_bias", model.out_proj_has_bias);
    follow("model_config.mlp_has_bias", model.mlp_has_bias);
  }
}

// Keys of the model that only repeat what others say.
void resolve_repeated(Resolution& r) {
  auto& model = r.config().model_config;
  auto& data = r.config().dataset_config;
  constexpr const char* kReset = "dataset_config.reset_attention_mask";
  constexpr const char* kEod = "model_config.use_eod_reset";
  constexpr const char* kTables = "model_config.embedding_init_dtype";
  constexpr const char* kOut = "model_config.out_hidden_size";
  if (r.sound({kReset, kEod}) && model.use_eod_reset && !data.reset_attention_mask) {
    if (r.given(kReset)) {
      r.error(kEod, concat("is True, but ", kReset, " is False; keep one of them"));
    } else {
      data.reset_attention_mask = true;
      r.derived(kReset, kEod);
    }
  }
  if (r.sound({kTables, "model_config.params_dtype"}) && model.embedding_init_dtype &&
      *model.embedding_init_dtype != model.params_dtype) {
    r.error(kTables, concat("is ", name_of(*model.embedding_init_dtype), ", but params_dtype is ",
                            name_of(model.params_dtype),
                            "; tables have the type of all parameters, leave this key out"));
  }
  if (r.sound({kOut, kHidden}) && model.out_hidden_size &&
      *model.out_hidden_size != model.hidden_size) {
    r.error(kOut,
            concat("is ", *model.out_hidden_size, ", but what the MLP gives is added to a ",
                   "residual stream of hidden_size ", model.hidden_size, "; leave this key out"));
  }
}

void resolve_start_values(Resolution& r) {
  const auto& bias = r.config().model_config.bias_init;
  constexpr const char* kBias = "model_config.bias_init";
  if (r.sound({kBias}) && (bias.name.starts_with("xavier") || bias.name.starts_with("he_"))) {
    r.error(kBias, concat(bias.name,
                          " goes by the sizes of a matrix, which a bias is not; expected "
                          "normal, truncatednormal, uniform, zeros, ones or a number"));
  }
}

void resolve_attention(Resolution& r) {
  auto& model = r.config().model_config;
  if (!model.fa_config) {
    return;
  }
  constexpr const char* kPre = "model_config.fa_config.pre_tokens";
  constexpr const char* kKeep = "model_config.fa_config.keep_prob";
  constexpr const char* kWindow = "model_config.window_size";
  constexpr const char* kDropout = "model_config.attention_dropout";
  if (r.sound({kPre, kWindow, kSeq})) {
    auto& pre = model.fa_config->pre_tokens;
    const auto is_all = [&](int64_t tokens) { return tokens >= model.seq_length - 1; };
    if (model.window_size && !r.given(kPre)) {
      pre = model.window_size->front();
      r.derived(kPre, kWindow);
    } else if (model.window_size) {
      const int64_t window = model.window_size->front();
      if (pre != window && !(is_all(pre) && is_all(window))) {
        r.error(kPre, concat("is ", pre, ", but window_size is [", window,
                             ", 0]; both name the tokens before the own one, give one of them"));
      }
    } else if (!is_all(pre)) {
      model.window_size = {pre, 0};
      r.derived(kWindow, kPre);
    }
  }
  constexpr const char* kMode = "model_config.fa_config.sparse_mode";
  const int64_t mode = model.fa_config->sparse_mode;
  if (r.sound({kMode, kPre, kWindow}) && (mode == 2 || mode == 3) && model.window_size &&
      model.window_size->front() < model.seq_length - 1) {
    r.error(kMode,
            concat(mode, " is causality alone, but window_size or pre_tokens hide what lies ",
                   "more than ", model.window_size->front(),
                   " tokens back; leave one of them out, or set 4"));
  }
  if (r.sound({kKeep, kDropout})) {
    auto& keep = model.fa_config->keep_prob;
    if (!r.given(kKeep)) {
      keep = 1 - model.attention_dropout;
      if (model.attention_dropout > 0) {
        r.derived(kKeep, kDropout);
      }
    } else if (!r.given(kDropout)) {
      model.attention_dropout = std::round((1 - keep) * 1e12) / 1e12;  // 1 - 0.9 is not 0.1
      if (keep < 1) {
        r.derived(kDropout, kKeep);
      }
    } else if (std::abs(1 - keep - model.attention_dropout) > 1e-9) {
      r.error(kKeep, concat("is ", number_text(keep), ", but attention_dropout is ",
                            number_text(model.attention_dropout), "; their sum must be 1"));
    }
  }
}

void check_layers(Resolution& r, const char* key) {
  try {
    layers_per_chunk(r.config().model_config.num_layers, r.config().parallel_config);
  } catch (const ValueError& error) {
    r.error(key, error.what());
  }
}

// A layer with the keys and values of another needs that one in its chunk, whose forward pass has
// them.
void check_shared_keys(Resolution& r, const char* key) {
  const TransformerConfig& model = r.config().model_config;
  if (model.num_kv_shared_layers == 0 ||
      !r.sound({key, "model_config.num_kv_shared_layers", "model_config.layer_types",
                "model_config.sliding_window_pattern", "model_config.window_size"})) {
    return;
  }
  int64_t earliest = model.num_layers;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    earliest = std::min(earliest, keys_from(model, layer).value_or(earliest));
  }
  for (const std::vector<LayerRange>& row :
       layer_ranges(model.num_layers, r.config().parallel_config)) {
    for (const LayerRange& range : row) {
      for (int64_t layer = range.first; layer < range.first + range.count; ++layer) {
        const std::optional<int64_t> source = keys_from(model, layer);
        if (source && *source < range.first) {
          r.error(key, concat("parts layer ", layer, " from layer ", *source,
                              ", whose keys and values it has (num_kv_shared_layers ",
                              model.num_kv_shared_layers,
                              "); give parallel_config.num_layer_list with layers ", earliest,
                              " to ", model.num_layers - 1, " on the last stage"));
          return;
        }
      }
    }
  }
}

void check_layout(Resolution& r) {
  const auto& parallel = r.config().parallel_config;
  const auto& model = r.config().model_config;
  constexpr const char* kPp = "parallel_config.pipeline_model_parallel_size";
  constexpr const char* kVpp = "parallel_config.virtual_pipeline_model_parallel_size";
  constexpr const char* kTp = "parallel_config.tensor_model_parallel_size";
  constexpr const char* kList = "parallel_config.num_layer_list";
  constexpr const char* kOffset = "parallel_config.offset";
  constexpr const char* kStandalone = "parallel_config.standalone_embedding_stage";
  const int64_t pp = parallel.pipeline_model_parallel_size;
  const int64_t vpp = parallel.virtual_pipeline_model_parallel_size.value_or(1);
  const int64_t tp = parallel.tensor_model_parallel_size;
  if (r.sound({kPp, kVpp})) {
    if (vpp > 1 && pp < 2) {
      r.error(kVpp, concat("is ", vpp, "; interleaving needs pipeline_model_parallel_size >= 2"));
      return;
    }
    if (parallel.standalone_embedding_stage && (pp < 2 || vpp > 1)) {
      r.error(kStandalone,
              concat("needs pipeline_model_parallel_size >= 2 and no interleaving, got ", pp,
                     " stages of ", vpp, " chunks"));
      return;
    }
  }
  if (parallel.num_layer_list && parallel.offset) {
    r.error(kOffset, "num_layer_list and offset both give the layers of a stage; keep one");
  } else if (r.sound({kPp, kVpp, kList, kOffset, "model_config.num_layers"})) {
    check_layers(r, parallel.num_layer_list ? kList : parallel.offset ? kOffset : kPp);
    check_shared_keys(r, parallel.num_layer_list ? kList : parallel.offset ? kOffset : kPp);
  }
  if (pp > 1 && r.config().optimizer_config.optimizer_in_backward) {
    r.error("optimizer_config.optimizer_in_backward",
            concat("updates weights before the gradients of all stages are known; it cannot be "
                   "combined with pipeline_model_parallel_size ",
                   pp));
  }
  if (r.sound({kTp}) && tp > 1) {
    const auto divides = [&](const char* key, int64_t size) {
      if (r.sound({key}) && size % tp != 0) {
        r.error(key, concat(size, " is not divisible by tensor_model_parallel_size ", tp));
      }
    };
    divides(kHeads, model.num_attention_heads);
    const int64_t groups = model.num_query_groups;
    if (r.sound({kGroups, kHeads}) && model.num_attention_heads % tp == 0 && groups % tp != 0 &&
        tp % groups != 0) {
      r.error(kGroups, concat(groups, " and tensor_model_parallel_size ", tp,
                              ": neither divides the other"));
    }
    const int64_t full_groups = model.full_attention_num_query_groups.value_or(groups);
    if (r.sound({kGroupsOfFull, kHeads}) && full_groups % tp != 0 && tp % full_groups != 0) {
      r.error(kGroupsOfFull, concat(full_groups, " and tensor_model_parallel_size ", tp,
                                    ": neither divides the other"));
    }
    divides("model_config.ffn_hidden_size", model.ffn_hidden_size);
    if (parallel.sequence_parallel) {
      divides(kSeq, model.seq_length);
    }
    if (model.fused_linear_cross_entropy.value_or(false)) {
      r.error("model_config.fused_linear_cross_entropy",
              concat("the loss needs sums over the vocabulary, which tensor_model_parallel_size ",
                     tp, " splits; leave this key out"));
    }
    if (!model.fused_linear_cross_entropy) {
      r.config().model_config.fused_linear_cross_entropy = false;
      r.derived("model_config.fused_linear_cross_entropy", kTp);
    }
    if (r.config().optimizer_config.optimizer_in_backward) {
      r.unsupported("optimizer_config.optimizer_in_backward",
                    "gradients that several tensor-parallel ranks share are complete only after "
                    "the backward pass; set tensor_model_parallel_size: 1");
    }
    r.config().model_config.sequence_parallel = parallel.sequence_parallel;
  } else if (parallel.sequence_parallel) {
    r.idle("parallel_config.sequence_parallel", "with tensor_model_parallel_size 1");
  }
  const int64_t cp = parallel.context_parallel_size;
  if (r.sound({kCp, kSeq}) && cp > 1) {
    const bool pieces = parallel.sequence_parallel && r.sound({kTp}) && tp > 1;
    if (model.seq_length % (2 * cp) != 0) {
      r.error(kSeq, concat(model.seq_length, " cannot be cut into two chunks for each of ",
                           "context_parallel_size ", cp, " ranks; make it a multiple of ", 2 * cp));
    } else if (pieces && model.seq_length / cp % tp != 0) {
      r.error(kSeq, concat(model.seq_length, " tokens over context_parallel_size ", cp, " leave ",
                           model.seq_length / cp, ", which sequence_parallel cannot divide over ",
                           "tensor_model_parallel_size ", tp));
    }
    if (r.config().optimizer_config.optimizer_in_backward) {
      r.error("optimizer_config.optimizer_in_backward",
              concat("updates weights before their gradients are summed over ranks; it cannot be "
                     "combined with context_parallel_size ",
                     cp));
    }
  }
}

void check_recompute(Resolution& r) {
  const auto& model = r.config().model_config;
  const auto& parallel = r.config().parallel_config;
  constexpr const char* kConfig = "parallel_config.recompute_config";
  constexpr const char* kGranularity = "model_config.recompute_granularity";
  constexpr const char* kMethod = "model_config.recompute_method";
  constexpr const char* kNumber = "model_config.recompute_num_layers";
  if (!r.sound({kConfig, "parallel_config.recompute_config.recompute",
                "parallel_config.recompute_config.recompute_layers",
                "parallel_config.recompute_config.select_recompute",
                "parallel_config.recompute_config.select_recompute_layers",
                "parallel_config.recompute_config.select_comm_recompute",
                "parallel_config.recompute_config.select_recompute_exclude",
                "parallel_config.recompute_config.select_comm_recompute_exclude",
                "model_config.num_layers", "parallel_config.num_layer_list",
                "parallel_config.offset", "parallel_config.pipeline_model_parallel_size",
                "parallel_config.virtual_pipeline_model_parallel_size"})) {
    return;
  }
  try {
    layers_per_chunk(model.num_layers, parallel);
  } catch (const ValueError&) {
    return;  // reported as such
  }
  bool full = false;
  const bool asked = parallel.recompute_config || model.recompute_granularity ||
                     model.recompute_activations || model.select_recompute ||
                     model.select_comm_recompute;
  try {
    std::vector<LayerRecompute> layers =
        asked ? layer_recompute(r.config()) : std::vector<LayerRecompute>();
    full = std::any_of(layers.begin(), layers.end(), [](const auto& layer) { return layer.full; });
    if (recomputes(layers)) {
      r.config().model_config.layer_recompute = std::move(layers);
    }
  } catch (const ValueError& error) {
    r.error(kConfig, error.what());
    return;
  }
  const bool by_granularity = model.recompute_granularity || model.recompute_activations;
  if (parallel.recompute_config && by_granularity) {
    AllConfig without = r.config();
    without.model_config.recompute_granularity.reset();
    without.model_config.recompute_activations = false;
    without.model_config.select_recompute = false;
    if (recomputes(layer_recompute(without))) {
      for (const char* key : {kGranularity, kMethod, kNumber, "model_config.recompute_activations",
                              "model_config.select_recompute"}) {
        r.idle(key, "next to parallel_config.recompute_config");
      }
      return;
    }
  }
  if (model.recompute_granularity == "full" && (!model.recompute_method || !r.given(kNumber))) {
    r.note(kGranularity,
           concat("full with recompute_method ", model.recompute_method.value_or("uniform"),
                  " and ", model.recompute_num_layers.value_or(1), " layers"));
  }
  if (model.recompute_granularity != "full") {
    for (const char* key : {kMethod, kNumber}) {
      r.idle(key, "without recompute_granularity: full");
    }
  }
  const bool slices =
      parallel.recompute_config && parallel.recompute_config->recompute_slice_activation;
  if (slices || model.distribute_saved_activations) {
    const char* key = slices ? "parallel_config.recompute_config.recompute_slice_activation"
                             : "model_config.distribute_saved_activations";
    if (!full) {
      r.idle(key, "without layers that are recomputed as a whole");
    } else if (parallel.tensor_model_parallel_size == 1) {
      r.idle(key, "with tensor_model_parallel_size 1");
    } else if (parallel.sequence_parallel) {
      r.idle(key, "with sequence_parallel, which divides what is kept");
    }
  }
  if (parallel.recompute_config &&
      parallel.recompute_config->parallel_optimizer_comm_recompute.has_value() &&
      zero_level(r.config()) < 3) {
    r.idle("parallel_config.recompute_config.parallel_optimizer_comm_recompute",
           "without zero_level: z3");
  }
}

}  // namespace

bool Resolution::sound(std::initializer_list<const char*> keys) const {
  for (const char* key : keys) {
    if (faulty_.contains(key)) {
      return false;
    }
  }
  return true;
}

bool Resolution::given(const std::string& key) const {
  const auto origin = config_.origins.find(key);
  return origin != config_.origins.end() && !origin->second.place.empty();
}

bool Resolution::overridden(const std::string& key) const {
  const auto origin = config_.origins.find(key);
  return origin != config_.origins.end() && origin->second.kind == ConfigOrigin::Kind::kOverride;
}

bool Resolution::asked(const char* section, const char* name) const {
  return differs_from_default(config_, section, name) || overridden(concat(section, ".", name));
}

bool Resolution::asked_beside(const std::string& other,
                              const char* section,
                              const char* name) const {
  return differs_from_default(config_, section, name) ||
         (overridden(concat(section, ".", name)) && !overridden(other));
}

void Resolution::derived(const std::string& key, const std::string& from) {
  config_.origins[key] = {ConfigOrigin::Kind::kDerived, "derived from " + from, "", ""};
}

std::string Resolution::shown(const std::string& key) const {
  constexpr std::string_view kModel = "model_config.";
  return place_of_(key) + ": " +
         (key.starts_with(kModel) ? config_.model_section + key.substr(kModel.size() - 1) : key) +
         ": ";
}

void Resolution::error(const std::string& key, const std::string& message) {
  errors_.push_back(shown(key) + message);
}

void Resolution::unsupported(const std::string& key, const std::string& message) {
  config_.unsupported.push_back(shown(key) + message);
}

void Resolution::note(const std::string& key, const std::string& message) {
  config_.notes.push_back(shown(key) + message);
}

void Resolution::idle(const std::string& key, const std::string& why) {
  const size_t dot = key.find('.');
  const Key& row = *find_key(key.substr(0, dot), key.substr(dot + 1));
  if (to_yaml(row.field.get(config_)) != to_yaml(default_value(row))) {
    note(key, concat("has no effect", why.starts_with(':') ? "" : " ", why));
    config_.origins[key].idle = why;
  }
}

void resolve_model(Resolution& r) {
  resolve_dtypes(r);
  resolve_heads(r);
  resolve_positions(r);
  resolve_mlp(r);
  resolve_attention(r);
  resolve_layers(r);
  resolve_repeated(r);
  resolve_start_values(r);
  const auto& model = r.config().model_config;
  const auto& data = r.config().dataset_config;
  if (data.seq_length && r.sound({kSeq, "dataset_config.seq_length"}) &&
      *data.seq_length != model.seq_length) {
    r.error("dataset_config.seq_length",
            concat("is ", *data.seq_length, ", but the model's is ", model.seq_length));
  }
  if (model.recompute_num_layers && *model.recompute_num_layers > model.num_layers &&
      r.sound({"model_config.num_layers"})) {
    r.error("model_config.recompute_num_layers",
            concat("is ", *model.recompute_num_layers, " of ", model.num_layers, " layers"));
  }
  check_layout(r);
  check_recompute(r);
  resolve_moe(r);
  resolve_score_head(r);
  resolve_lora(r);
  resolve_ahead(r);
  resolve_hyper_connections(r);
}

bool differs_from_default(const AllConfig& config, const char* section, const char* name) {
  const Key* key = find_key(section, name);
  return to_yaml(key->field.get(config)) != to_yaml(default_value(*key));
}

void resolve(Resolution& r) {
  resolve_model(r);
  resolve_training(r);
  resolve_registered(r);
  resolve_optimizer(r);
  resolve_attention_scores(r);
  resolve_schedule(r);
  resolve_tensorboard(r);
  resolve_telemetry(r);
  resolve_monitor(r);
  resolve_post_training(r);
  resolve_one_order(r);
  resolve_exact(r);
}

}  // namespace tapestry::config
