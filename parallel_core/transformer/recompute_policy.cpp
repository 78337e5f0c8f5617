#include "parallel_core/transformer/recompute_policy.h"

#include <algorithm>
#include <functional>
#include <set>

#include "autograd/tensor/error.h"
#include "parallel_core/config/recompute_tables.h"
#include "parallel_core/transformer/activation.h"
#include "text/util/regular_expression.h"

namespace tapestry {

namespace {

std::vector<std::string> parts_of_name(const std::string& path) {
  std::vector<std::string> parts(1);
  for (const char c : path) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::string joined_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

void add_once(std::vector<std::string>& list, const std::string& name) {
  if (std::find(list.begin(), list.end(), name) == list.end()) {
    list.push_back(name);
  }
}

bool is_communication(LayerOp op) {
  return op == LayerOp::kInputNorm || op == LayerOp::kPostAttentionNorm;
}

// Only the names behind whose operations a sequence is gathered.
std::vector<LayerOpName> communication_names(const std::vector<LayerOpName>& names) {
  std::vector<LayerOpName> out;
  std::copy_if(names.begin(), names.end(), std::back_inserter(out),
               [](const LayerOpName& name) { return is_communication(name.op); });
  return out;
}

LayerOpSet set_of(LayerOp op) {
  LayerOpSet set;
  set.set(static_cast<size_t>(op));
  return set;
}

PatternMatch match_among(const std::vector<RegularExpression>& parts,
                         const std::vector<LayerOpName>& names,
                         bool aliases) {
  PatternMatch match;
  struct Module {
    std::string path;
    std::vector<const LayerOpName*> ops;
  };
  std::vector<Module> modules;
  for (const LayerOpName& name : names) {
    const std::vector<std::string> own = parts_of_name(name.path);
    if (name.is_alias != aliases || own.size() < parts.size()) {
      continue;
    }
    bool matches = true;
    std::string front;
    for (size_t i = 0; i < parts.size() && matches; ++i) {
      matches = parts[i].matches(own[i]);
      front += (i == 0 ? "" : ".") + own[i];
    }
    if (!matches) {
      continue;
    }
    if (own.size() == parts.size()) {
      match.ops |= set_of(name.op);
      add_once(match.names, name.path);
      continue;
    }
    auto module = std::find_if(modules.begin(), modules.end(),
                               [&](const Module& m) { return m.path == front; });
    if (module == modules.end()) {
      module = modules.insert(module, {front, {}});
    }
    module->ops.push_back(&name);
  }
  for (const Module& module : modules) {
    LayerOp last = module.ops.front()->op;
    for (const LayerOpName* name : module.ops) {
      last = std::max(last, name->op);
    }
    // A layer of one operation that has a name of its own too.
    const bool known =
        std::find(match.names.begin(), match.names.end(), module.path) != match.names.end();
    if (!known) {
      match.modules.push_back(module.path);
    }
    for (const LayerOpName* name : module.ops) {
      if (name->op != last) {
        match.module_ops |= set_of(name->op);
        add_once(match.module_names, name->path);
      }
    }
  }
  return match;
}

using Names = std::vector<std::string>;
using AddNames = std::function<void(LayerOp, const Names&, const Names&)>;

void add_attention_names(const TransformerConfig& config, const AddNames& add) {
  add(LayerOp::kQkv,
      {"attention.wq", "attention.wk", "attention.wv", "attention.wq.matmul", "attention.wk.matmul",
       "attention.wv.matmul"},
      {"attention.qkv_proj", "attention.qkv_proj.matmul", "self_attention.linear_qkv",
       "self_attention.linear_qkv.matmul"});
  if (config.qk_layernorm) {
    add(LayerOp::kQNorm, {"attention.q_norm.norm"}, {"self_attention.q_layernorm.norm"});
    add(LayerOp::kKNorm, {"attention.k_norm.norm"}, {"self_attention.k_layernorm.norm"});
  }
  if (config.v_layernorm) {
    add(LayerOp::kVNorm, {"attention.v_norm.norm"}, {});
  }
  if (config.position_embedding_type == "rope") {
    add(LayerOp::kRotary, {"attention.apply_rotary_emb"}, {"self_attention.apply_rotary_pos_emb"});
  }
  add(LayerOp::kCoreAttention, {"attention.core_attention", "attention.flash_attention"},
      {"self_attention.core_attention"});
  if (config.attention_output_gate) {
    add(LayerOp::kOutputGate, {"attention.output_gate"}, {});
  }
  add(LayerOp::kOutProj, {"attention.wo", "attention.wo.matmul"},
      {"attention.out_proj", "attention.out_proj.matmul", "self_attention.linear_proj",
       "self_attention.linear_proj.matmul"});
}

// Of layers without attention: the projection of the input, the convolution, what goes from token
// to token, the norm of that, and the projection of the output.
void add_mixer_names(const TransformerConfig& config, const AddNames& add) {
  struct Mixer {
    MixerKind kind;
    std::string name;
    const char* recurrence;  // null: it has none but the convolution
  };
  for (const Mixer& mixer : {Mixer{MixerKind::kGatedDelta, "linear_attention.", "gated_delta_rule"},
                             Mixer{MixerKind::kShortConv, "short_conv.", nullptr},
                             Mixer{MixerKind::kMamba, "mamba.", "state_space"}}) {
    if (!has_mixer(config, mixer.kind)) {
      continue;
    }
    add(LayerOp::kQkv, {mixer.name + "in_proj", mixer.name + "in_proj.matmul"}, {});
    add(LayerOp::kConvolution, {mixer.name + "conv"}, {});
    if (mixer.recurrence != nullptr) {
      add(LayerOp::kRecurrence, {mixer.name + mixer.recurrence}, {});
      add(LayerOp::kMixerNorm, {mixer.name + "norm"}, {});
    }
    add(LayerOp::kOutProj, {mixer.name + "out_proj", mixer.name + "out_proj.matmul"}, {});
  }
}

}  // namespace

std::vector<LayerOpName> layer_op_names(const TransformerConfig& config) {
  std::vector<LayerOpName> names;
  const auto add = [&](LayerOp op, const std::vector<std::string>& paths,
                       const std::vector<std::string>& aliases) {
    for (const std::string& path : paths) {
      names.push_back({path, op, false});
    }
    for (const std::string& path : aliases) {
      names.push_back({path, op, true});
    }
  };
  const std::string& act = config.hidden_act;
  // Layers of other kinds have other operations; names are those of all layers.
  const bool norms_inputs =
      config.norm_placement != "post" || config.mixer_norm_placement.value_or("post") != "post";
  const bool norms_outputs = norms_outputs_somewhere(config);
  if (config.hyper_connections.enabled) {
    add(LayerOp::kAttentionStreams, {"attention_hyper_connection"}, {});
    add(LayerOp::kMlpStreams, {"mlp_hyper_connection"}, {});
  }
  if (norms_inputs) {
    add(LayerOp::kInputNorm, {"attention_norm.norm"}, {"input_norm.norm", "input_layernorm.norm"});
  }
  if (has_mixer(config, MixerKind::kAttention)) {
    add_attention_names(config, add);
  }
  add_mixer_names(config, add);
  if (norms_outputs) {
    add(LayerOp::kAttentionPostNorm, {"attention_post_norm.norm"},
        {"attn_post_norm.norm", "post_self_attn_layernorm.norm"});
  }
  add(LayerOp::kAdd, {"add"}, {"self_attn_bda"});
  const bool one_norm =
      config.norm_placement == "parallel_one_norm" && !has_recurrent_layers(config);
  if (norms_inputs && !one_norm) {
    add(LayerOp::kPostAttentionNorm, {"ffn_norm.norm"},
        {"post_attention_norm.norm", "pre_mlp_layernorm.norm"});
  }
  if (has_gated_mlp(config)) {
    add(LayerOp::kMapping, {"feed_forward.w1.matmul", "feed_forward.w3.matmul", "feed_forward.w3"},
        {"mlp.mapping", "mlp.mapping.matmul", "mlp.linear_fc1", "mlp.linear_fc1.matmul"});
    add(LayerOp::kActivation, {"feed_forward.w1.activation.silu", "feed_forward.mul"},
        {"mlp.activation", "mlp.activation_func.silu", "mlp.mul"});
    add(LayerOp::kProjection, {"feed_forward.w2", "feed_forward.w2.matmul"},
        {"mlp.projection", "mlp.projection.matmul", "mlp.linear_fc2", "mlp.linear_fc2.matmul"});
  } else {
    add(LayerOp::kMapping, {"feed_forward.mapping.matmul"},
        {"feed_forward.w1.matmul", "mlp.mapping", "mlp.mapping.matmul", "mlp.linear_fc1",
         "mlp.linear_fc1.matmul"});
    // The names that stand for the activation without patterns mean it here too.
    add(LayerOp::kActivation, {"feed_forward.mapping.activation." + act},
        {"feed_forward.w1.activation.silu", "feed_forward.mul", "mlp.activation",
         "mlp.activation_func." + act});
    add(LayerOp::kProjection, {"feed_forward.projection", "feed_forward.projection.matmul"},
        {"feed_forward.w2.matmul", "mlp.projection", "mlp.projection.matmul", "mlp.linear_fc2",
         "mlp.linear_fc2.matmul"});
  }
  if (norms_outputs) {
    add(LayerOp::kFfnPostNorm, {"ffn_post_norm.norm"}, {"post_mlp_layernorm.norm"});
  }
  if (config.moe.moe_beside_dense) {
    add(LayerOp::kPostAttentionNorm, {"moe_norm.norm"}, {});
    add(LayerOp::kFfnPostNorm, {"dense_post_norm.norm", "moe_post_norm.norm"}, {});
  }
  if (config.per_layer_embedding_size > 0) {
    add(LayerOp::kPerLayerGate, {"per_layer_gate", "per_layer_gate.matmul"}, {});
    add(LayerOp::kPerLayerProjection, {"per_layer_projection", "per_layer_projection.matmul"}, {});
    add(LayerOp::kPerLayerNorm, {"per_layer_norm.norm"}, {});
  }
  return names;
}

PatternMatch match_pattern(const std::string& pattern, const std::vector<LayerOpName>& names) {
  std::vector<RegularExpression> parts;
  for (const std::string& part : parts_of_pattern(pattern)) {
    parts.emplace_back(part, concat("the pattern '", pattern, "'"));
  }
  PatternMatch match = match_among(parts, names, false);
  return match.names.empty() && match.modules.empty() ? match_among(parts, names, true) : match;
}

RecomputePolicy recompute_policy(const LayerRecompute& layer,
                                 const std::vector<LayerOpName>& names) {
  RecomputePolicy policy;
  policy.full = layer.full;
  policy.keeps_input = layer.keeps_input;
  policy.repeats_communication = layer.repeats_communication;
  policy.slices_input = layer.slices_input;
  const std::vector<LayerOpName> communication = communication_names(names);
  LayerOpSet repeated;  // which is done in any case
  const auto add = [](const std::vector<std::string>& patterns,
                      const std::vector<LayerOpName>& among, bool modules, LayerOpSet& ops,
                      std::vector<std::string>& matched) {
    for (const std::string& pattern : patterns) {
      const PatternMatch match = match_pattern(pattern, among);
      ops |= match.ops;
      for (const std::string& name : match.names) {
        add_once(matched, name);
      }
      if (modules) {
        ops |= match.module_ops;
        for (const std::string& name : match.module_names) {
          add_once(matched, name);
        }
      }
    }
  };
  add(layer.select, names, true, policy.again, policy.select);
  add(layer.select_comm, communication, false, repeated, policy.select_comm);
  add(layer.exclude, names, false, policy.kept, policy.exclude);
  add(layer.comm_exclude, communication, false, policy.gathered_kept, policy.comm_exclude);
  return policy;
}

std::string layer_recompute_text(const TransformerConfig& config) {
  std::string text;
  const std::vector<LayerOpName> names = layer_op_names(config);
  for (size_t i = 0; i < config.layer_recompute.size(); ++i) {
    const RecomputePolicy policy = recompute_policy(config.layer_recompute[i], names);
    const auto line = [&](const char* what, const std::vector<std::string>& listed) {
      if (!listed.empty()) {
        text += concat(text.empty() ? "" : "\n", "Set ", what, " at layer ", i, ": ",
                       joined_names(listed));
      }
    };
    if (policy.full) {
      text += concat(text.empty() ? "" : "\n", "Set full recompute at layer ", i);
    } else {
      line("select recompute on", policy.select);
      line("select comm recompute on", policy.select_comm);
    }
    line("select recompute exclude", policy.exclude);
    line("select comm recompute exclude", policy.comm_exclude);
  }
  return text;
}

PatternRemarks pattern_remarks(const TransformerConfig& config) {
  PatternRemarks remarks;
  const std::vector<LayerOpName> names = layer_op_names(config);
  const std::vector<LayerOpName> communication = communication_names(names);
  std::set<std::string> seen;
  const auto look = [&](const char* key, const std::vector<std::string>& patterns,
                        const std::vector<LayerOpName>& among, bool modules) {
    for (const std::string& pattern : patterns) {
      if (!seen.insert(concat(key, " ", pattern)).second) {
        continue;
      }
      const PatternMatch match = match_pattern(pattern, among);
      if (match.names.empty() && match.modules.empty()) {
        std::vector<std::string> known;
        for (const LayerOpName& name : among) {
          if (!name.is_alias) {
            known.push_back(name.path);
          }
        }
        remarks.warnings.push_back(concat(key, ": the pattern '", pattern,
                                          "' matches no operation of a layer; there are ",
                                          joined_names(known)));
      } else if (!match.modules.empty() &&
                 (!modules || (match.names.empty() && match.module_names.empty()))) {
        remarks.notes.push_back(concat(key, ": the pattern '", pattern, "' matches the module ",
                                       match.modules.front(),
                                       modules ? ", whose one operation makes what is kept"
                                               : ", not an operation, and has no effect"));
      }
    }
  };
  for (const LayerRecompute& layer : config.layer_recompute) {
    look("select_recompute", layer.select, names, true);
    look("select_comm_recompute", layer.select_comm, communication, false);
    look("select_recompute_exclude", layer.exclude, names, false);
    look("select_comm_recompute_exclude", layer.comm_exclude, communication, false);
  }
  return remarks;
}

}  // namespace tapestry
