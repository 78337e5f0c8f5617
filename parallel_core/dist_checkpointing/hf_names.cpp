#include "parallel_core/dist_checkpointing/hf_names.h"

#include <array>
#include <optional>
#include <utility>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"

namespace tapestry {

namespace {

using Names = std::pair<const char*, const char*>;  // logical, file

// Outside of layers.
constexpr std::array<Names, 3> kLlamaTop = {{{"tok_embeddings.", "model.embed_tokens."},
                                             {"final_norm.", "model.norm."},
                                             {"lm_head.", "lm_head."}}};
// Behind "layers.I." and "model.layers.I.".
constexpr std::array<Names, 9> kLlamaLayer = {{{"attention_norm.", "input_layernorm."},
                                               {"attention.wq.", "self_attn.q_proj."},
                                               {"attention.wk.", "self_attn.k_proj."},
                                               {"attention.wv.", "self_attn.v_proj."},
                                               {"attention.wo.", "self_attn.o_proj."},
                                               {"ffn_norm.", "post_attention_layernorm."},
                                               {"feed_forward.w_gate.", "mlp.gate_proj."},
                                               {"feed_forward.w_up.", "mlp.up_proj."},
                                               {"feed_forward.w_down.", "mlp.down_proj."}}};

constexpr std::array<Names, 3> kGpt2Top = {
    {{"tok_embeddings.", "wte."}, {"pos_embeddings.", "wpe."}, {"final_norm.", "ln_f."}}};
constexpr std::array<Names, 5> kGpt2Layer = {{{"attention_norm.", "ln_1."},
                                              {"attention.wo.", "attn.c_proj."},
                                              {"ffn_norm.", "ln_2."},
                                              {"feed_forward.w_up.", "mlp.c_fc."},
                                              {"feed_forward.w_down.", "mlp.c_proj."}}};

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}
bool ends_with(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// Replaces the first prefix of a table that fits; `forward` maps logical to file names.
template <size_t N>
std::optional<std::string> rename(const std::string& name,
                                  const std::array<Names, N>& table,
                                  bool forward) {
  for (const auto& [logical, file] : table) {
    const std::string from = forward ? logical : file;
    if (starts_with(name, from)) {
      return (forward ? file : logical) + name.substr(from.size());
    }
  }
  return std::nullopt;
}

struct LayerName {
  std::string prefix;  // "layers.3."
  std::string rest;
};

// Splits "<stem>I.<rest>".
std::optional<LayerName> split_layer(const std::string& name, const std::string& stem) {
  if (!starts_with(name, stem)) {
    return std::nullopt;
  }
  const size_t dot = name.find('.', stem.size());
  if (dot == std::string::npos) {
    return std::nullopt;
  }
  return LayerName{"layers." + name.substr(stem.size(), dot - stem.size() + 1),
                   name.substr(dot + 1)};
}

LogicalState to_llama(const LogicalState& state) {
  LogicalState out;
  for (const auto& [name, tensor] : state) {
    if (const auto layer = split_layer(name, "layers.")) {
      out.emplace("model." + layer->prefix + rename(layer->rest, kLlamaLayer, true).value(),
                  tensor);
    } else {
      out.emplace(rename(name, kLlamaTop, true).value(), tensor);
    }
  }
  return out;
}

bool is_conv1d(const std::string& name) {
  return ends_with(name, "attn.c_proj.weight") || ends_with(name, "mlp.c_fc.weight") ||
         ends_with(name, "mlp.c_proj.weight");
}

LogicalState to_gpt2(const LogicalState& state) {
  LogicalState out;
  for (const auto& [name, tensor] : state) {
    const auto layer = split_layer(name, "layers.");
    if (!layer) {
      out.emplace("transformer." + rename(name, kGpt2Top, true).value(), tensor);
      continue;
    }
    const std::string prefix = "transformer.h." + layer->prefix.substr(7);
    const std::string kind = ends_with(name, ".bias") ? "bias" : "weight";
    if (layer->rest == "attention.wq." + kind) {
      const auto part = [&](const char* which) {
        return state.at(layer->prefix + "attention." + which + "." + kind);
      };
      const Tensor fused = cat({part("wq"), part("wk"), part("wv")}, 0);
      out.emplace(prefix + "attn.c_attn." + kind,
                  kind == "weight" ? fused.t().contiguous() : fused);
    } else if (const auto renamed = rename(layer->rest, kGpt2Layer, true)) {
      out.emplace(prefix + *renamed, is_conv1d(*renamed) ? tensor.t().contiguous() : tensor);
    }
  }
  return out;
}

LogicalState from_gpt2(const LogicalState& tensors) {
  LogicalState out;
  for (const auto& [full_name, tensor] : tensors) {
    const std::string name =
        starts_with(full_name, "transformer.") ? full_name.substr(12) : full_name;
    const auto layer = split_layer(name, "h.");
    if (!layer) {
      out.emplace(rename(name, kGpt2Top, false).value_or(name), tensor);
    } else if (layer->rest == "attn.c_attn.weight" || layer->rest == "attn.c_attn.bias") {
      const Tensor fused = tensor.dim() == 2 ? tensor.t().contiguous() : tensor;
      const std::string kind = tensor.dim() == 2 ? "weight" : "bias";
      if (fused.size(0) % 3 == 0) {
        const TensorList parts = split(fused, fused.size(0) / 3, 0);
        out.emplace(layer->prefix + "attention.wq." + kind, parts[0]);
        out.emplace(layer->prefix + "attention.wk." + kind, parts[1]);
        out.emplace(layer->prefix + "attention.wv." + kind, parts[2]);
      } else {
        out.emplace(name, tensor);
      }
    } else if (layer->rest == "attn.bias" || layer->rest == "attn.masked_bias") {
      continue;  // the causal mask that old files store
    } else {
      const std::string renamed = rename(layer->rest, kGpt2Layer, false).value_or(layer->rest);
      const bool turn = is_conv1d(layer->rest) && tensor.dim() == 2;
      out.emplace(layer->prefix + renamed, turn ? tensor.t().contiguous() : tensor);
    }
  }
  return out;
}

LogicalState from_llama(const LogicalState& tensors) {
  LogicalState out;
  for (const auto& [name, tensor] : tensors) {
    if (ends_with(name, "rotary_emb.inv_freq")) {
      continue;
    }
    if (const auto layer = split_layer(name, "model.layers.")) {
      out.emplace(layer->prefix + rename(layer->rest, kLlamaLayer, false).value_or(layer->rest),
                  tensor);
    } else {
      out.emplace(rename(name, kLlamaTop, false).value_or(name), tensor);
    }
  }
  return out;
}

bool any_name(const LogicalState& tensors, const char* prefix) {
  const auto found = tensors.lower_bound(prefix);
  return found != tensors.end() && starts_with(found->first, prefix);
}

// True if the output matrix is the embeddings once more. One of its own cannot be dropped: the
// model that it belongs to is not tied.
bool repeats_embeddings(const LogicalState& state) {
  const auto head = state.find("lm_head.weight");
  const auto table = state.find("tok_embeddings.weight");
  if (head == state.end() || table == state.end() ||
      head->second.shape() != table->second.shape()) {
    return false;
  }
  return all(eq(head->second, table->second)).item() != 0;
}

bool has_plain_structure(const TransformerConfig& c) {
  return !c.qk_layernorm && !c.use_sandwich_norm && c.use_final_norm &&
         !c.apply_residual_connection_post_norm && !c.out_hidden_size;
}

}  // namespace

std::string file_model_type(const TransformerConfig& c) {
  if (!has_plain_structure(c)) {
    return "tapestry";
  }
  const bool rms = c.normalization == "RMSNorm" || c.normalization == "FusedRMSNorm";
  const bool plain_rope = c.position_embedding_type == "rope" &&
                          c.rotary_config.rotary_percent == 1.0 &&
                          !c.rotary_config.rotary_interleaved;
  const bool swiglu = c.hidden_act == "swiglu" || c.hidden_act == "fused_swiglu";
  if (rms && plain_rope && swiglu) {
    if (c.qkv_has_bias && !c.out_proj_has_bias && !c.mlp_has_bias) {
      return "qwen2";
    }
    // Llama's attention has four biases or none, and no window.
    return c.qkv_has_bias == c.out_proj_has_bias && !c.window_size ? "llama" : "tapestry";
  }
  const bool gelu = c.hidden_act == "gelu" || c.hidden_act == "fast_gelu";
  if (!rms && !c.window_size && c.position_embedding_type == "learned_absolute" && gelu &&
      c.qkv_has_bias && c.out_proj_has_bias && c.mlp_has_bias &&
      !c.untie_embeddings_and_output_weights && c.num_query_groups == c.num_attention_heads &&
      c.kv_channels.value() * c.num_attention_heads == c.hidden_size) {
    return "gpt2";
  }
  return "tapestry";
}

LogicalState to_file_names(const TransformerConfig& config, const LogicalState& state) {
  const NoGradGuard guard;
  const std::string type = file_model_type(config);
  return type == "tapestry" ? state : type == "gpt2" ? to_gpt2(state) : to_llama(state);
}

LogicalState from_file_names(const TransformerConfig& config, const LogicalState& tensors) {
  const NoGradGuard guard;
  LogicalState out = any_name(tensors, "model.") ? from_llama(tensors)
                     : any_name(tensors, "transformer.") || any_name(tensors, "wte.")
                         ? from_gpt2(tensors)
                         : tensors;
  if (!config.untie_embeddings_and_output_weights && repeats_embeddings(out)) {
    out.erase("lm_head.weight");
  }
  return out;
}

}  // namespace tapestry
