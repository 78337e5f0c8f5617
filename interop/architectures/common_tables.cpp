#include "interop/architectures/common_tables.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "interop/architectures/gguf_scaling.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

namespace {

bool is_null_or_0(const Value& value) { return value.is_null() || value == Value(int64_t{0}); }

Value turned_channels(const AllConfig& config) { return rotated_channels(config.model_config); }
void take_turned_channels(const Value& value, AllConfig& config) {
  TransformerConfig& c = config.model_config;
  if (c.multi_latent_attention) {
    set_value(config, "qk_pos_emb_head_dim", value);
  } else if (value.is<int64_t>()) {
    const auto share = static_cast<double>(value.as<int64_t>()) /
                       static_cast<double>(std::max<int64_t>(1, c.kv_channels.value_or(1)));
    // A share that rounds to fewer channels when it is multiplied again is raised by what is lost.
    c.rotary_config.rotary_percent = share;
    if (rotated_channels(c) < value.as<int64_t>()) {
      c.rotary_config.rotary_percent = std::nextafter(share, 2.0);
    }
  }
}
void take_key_groups(const Value& value, AllConfig& config) {
  set_value(config, "num_query_groups", value);
  TransformerConfig& c = config.model_config;
  c.group_query_attention = c.num_query_groups != c.num_attention_heads;
}
Value key_groups_of(const AllConfig& config) { return config.model_config.num_query_groups; }

Value expert_width_of(const AllConfig& config) {
  TransformerConfig model = config.model_config;
  model.moe = config.moe_config;
  return moe_ffn_hidden_size(model);
}
void take_expert_width(const Value& value, AllConfig& config) {
  if (!value.is_null()) {
    set_value(config, "moe_config.moe_ffn_hidden_size", value);
  }
}
void take_only_width(const Value& value, AllConfig& config) {
  set_value(config, "ffn_hidden_size", value);
  take_expert_width(value, config);
}
Value shared_experts_of(const AllConfig& config) {
  return config.moe_config.moe_shared_expert_intermediate_size.value_or(0) /
         std::max<int64_t>(1, expert_width_of(config).as<int64_t>());
}
void take_shared_experts(const Value& value, AllConfig& config) {
  int64_t width = 0;
  const bool fits =
      value.is<int64_t>() &&
      !__builtin_mul_overflow(value.as<int64_t>(), expert_width_of(config).as<int64_t>(), &width);
  set_value(config, "moe_config.moe_shared_expert_intermediate_size",
            fits && width > 0 ? Value(width) : Value());
}
// LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX and _SIGMOID.
Value gating_of(const AllConfig& config) {
  return config.moe_config.moe_router_score_function == "sigmoid" ? int64_t{2} : int64_t{1};
}
void take_gating(const Value& value, AllConfig& config) {
  if (!value.is_null()) {
    set_value(config, "moe_config.moe_router_score_function",
              Value(std::string(value == Value(int64_t{2}) ? "sigmoid" : "softmax")));
  }
}
// llama.cpp refuses a choice of all groups, which is none.
bool chooses_groups(const MoEConfig& moe) {
  return moe.topk_method != "greedy" &&
         moe.moe_router_group_topk.value_or(1) < moe.moe_router_num_groups.value_or(1);
}
Value expert_groups_of(const AllConfig& config) {
  const MoEConfig& moe = config.moe_config;
  return chooses_groups(moe) ? moe.moe_router_num_groups.value() : int64_t{1};
}
Value chosen_groups_of(const AllConfig& config) {
  const MoEConfig& moe = config.moe_config;
  return chooses_groups(moe) ? moe.moe_router_group_topk.value_or(1) : int64_t{1};
}
// Choosing is by groups where there are some: of sigmoids by the sum of their two best.
void take_expert_groups(const Value& value, AllConfig& config) {
  MoEConfig& moe = config.moe_config;
  const bool grouped = value.is<int64_t>() && value.as<int64_t>() > 1;
  moe.topk_method = !grouped                                     ? "greedy"
                    : moe.moe_router_score_function == "sigmoid" ? "noaux_tc"
                                                                 : "group_limited_greedy";
  moe.moe_router_num_groups.reset();
  if (grouped) {
    set_value(config, "moe_config.moe_router_num_groups", value);
  }
}
void take_chosen_groups(const Value& value, AllConfig& config) {
  config.moe_config.moe_router_group_topk.reset();
  if (config.moe_config.moe_router_num_groups) {
    set_value(config, "moe_config.moe_router_group_topk", value);
  }
}
Value normalises_gates(const AllConfig& config) {
  return config.moe_config.norm_topk_prob.value_or(true);
}
void take_normalises_gates(const Value& value, AllConfig& config) {
  set_value(config, "moe_config.norm_topk_prob", value.is_null() ? Value(false) : value);
}

// With multi-latent attention llama.cpp keeps the latent of a token as the only key and value.
Value one_key_head(const AllConfig& /*config*/) { return int64_t{1}; }
Value latent_key_length(const AllConfig& config) {
  return config.model_config.kv_lora_rank + config.model_config.qk_pos_emb_head_dim;
}
// All channels of a head's queries and keys; the rotated ones are known by then.
Value latent_head_length(const AllConfig& config) {
  return config.model_config.kv_channels.value_or(0);
}
void take_latent_head_length(const Value& value, AllConfig& config) {
  set_value(config, "kv_channels", value);
  TransformerConfig& c = config.model_config;
  set_value(config, "qk_head_dim", Value(c.kv_channels.value_or(0) - c.qk_pos_emb_head_dim));
}

Value window_of_tokens(const AllConfig& config) {
  const auto& window = config.model_config.window_size;
  return window ? window->front() + 1 : int64_t{0};
}
void take_window(const Value& value, AllConfig& config) {
  if (is_null_or_0(value)) {
    config.model_config.window_size.reset();
  } else if (value.is<int64_t>()) {
    set_value(config, "window_size", Value::List{Value(value.as<int64_t>() - 1), int64_t{0}});
  }
}

class UsualScale final : public Rule {
 public:
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    TransformerConfig usual = config.model_config;
    usual.attention_scale.reset();
    if (std::abs(attention_scale(config.model_config) / attention_scale(usual) - 1) > 1e-7) {
      object_unless(config, "attention_scale", Value(), out,
                    "llama.cpp divides scores by the root of a head's size: leave it out");
    }
  }
};

class HeadsFillWidth final : public Rule {
 public:
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    const int64_t size = c.hidden_size / std::max<int64_t>(c.num_attention_heads, 1);
    if (c.kv_channels.value_or(size) != size) {
      out.push_back({"model_config.kv_channels", concat(*c.kv_channels),
                     concat("llama.cpp divides the width by the heads: use ", size)});
    }
  }
};

// A window that holds the longest text is none.
class NoWindow final : public Rule {
 public:
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    if (c.window_size && c.window_size->front() >= 0 &&
        c.window_size->front() + 1 < c.max_position_embeddings.value_or(c.seq_length)) {
      object_unless(config, "window_size", Value(), out, "windows cannot be said: leave it out");
    }
  }
};

class WindowPeriod final : public Rule {
 public:
  explicit WindowPeriod(int64_t period) : period_(period) {}
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    for (int64_t layer = 0; layer < c.num_layers; ++layer) {
      if (has_window(c, layer) != ((layer + 1) % period_ != 0)) {
        out.push_back({"model_config.layer_types", to_yaml(value_of(config, "layer_types")),
                       concat("llama.cpp has a window in all but every ", period_,
                              "-th layer: use sliding_window_pattern: ", period_)});
        return;
      }
    }
  }

 private:
  int64_t period_;
};

// llama.cpp tells a model whose queries are one matrix by the number of its layers.
class LatentQueries final : public Rule {
 public:
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    const bool is_lite =
        c.num_layers == 26 || c.num_layers == 27 || (c.num_layers == 48 && c.vocab_size == 128256);
    if (is_lite && c.q_lora_rank) {
      object_unless(config, "q_lora_rank", Value(), out,
                    "llama.cpp takes a model of 26 or 27 layers for one with q_proj alone: leave "
                    "it out");
    } else if (!is_lite && !c.q_lora_rank) {
      out.push_back({"model_config.q_lora_rank", "null",
                     "llama.cpp wants a number unless there are 26 or 27 layers"});
    }
  }
};

class SomeSharedExpert final : public Rule {
 public:
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (!config.moe_config.moe_shared_expert_intermediate_size) {
      out.push_back({"moe_config.moe_shared_expert_intermediate_size", "null",
                     "llama.cpp wants a shared expert: use the width of one"});
    }
  }
};

class NoDenseLayers final : public Rule {
 public:
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    TransformerConfig model = config.model_config;
    model.moe = config.moe_config;
    for (int64_t layer = 0; layer < model.num_layers; ++layer) {
      if (!is_moe_layer(model, layer)) {
        out.push_back({"moe_config.moe_layer_freq",
                       to_yaml(value_of(config, "moe_config.moe_layer_freq")),
                       "llama.cpp wants experts in every layer: use [1]"});
        return;
      }
    }
  }
};

}  // namespace

const TensorNames& llama_names() {
  static const TensorNames names = llama_names_with({}, {}, {});
  return names;
}

TensorNames llama_names_with(std::vector<NamePair> more,
                             std::string_view experts,
                             std::vector<NamePair> expert) {
  TensorNames names = {
      .part = "model.",
      .layers = "layers.",
      .top = {{"tok_embeddings.", "embed_tokens."}, {"final_norm.", "norm."}},
      .layer = std::move(more),
      .experts = experts,
      .expert = std::move(expert),
      // Of old files.
      .constants = {"rotary_emb.inv_freq"},
  };
  const std::vector<NamePair> layer = {
      {"attention_norm.", "input_layernorm."},    {"attention.wq.", "self_attn.q_proj."},
      {"attention.wk.", "self_attn.k_proj."},     {"attention.wv.", "self_attn.v_proj."},
      {"attention.wo.", "self_attn.o_proj."},     {"attention.q_norm.", "self_attn.q_norm."},
      {"attention.k_norm.", "self_attn.k_norm."}, {"ffn_norm.", "post_attention_layernorm."},
      {"feed_forward.w_gate.", "mlp.gate_proj."}, {"feed_forward.w_up.", "mlp.up_proj."},
      {"feed_forward.w_down.", "mlp.down_proj."}};
  const std::vector<NamePair> own = names.layer;
  std::copy_if(layer.begin(), layer.end(), std::back_inserter(names.layer),
               [&](const NamePair& row) {
                 return std::none_of(own.begin(), own.end(), [&](const NamePair& other) {
                   return other.logical == row.logical || other.file == row.file;
                 });
               });
  return names;
}

TensorNames gemma_names() {
  return llama_names_with({{"attention_post_norm.", "post_attention_layernorm."},
                           {"ffn_norm.", "pre_feedforward_layernorm."},
                           {"ffn_post_norm.", "post_feedforward_layernorm."}},
                          {}, {});
}

TensorNames names_with_shared_experts(std::vector<NamePair> more) {
  const std::vector<NamePair> experts = {
      {"moe.router.", "mlp.gate."},
      {"moe.shared_expert.w_gate.", "mlp.shared_experts.gate_proj."},
      {"moe.shared_expert.w_up.", "mlp.shared_experts.up_proj."},
      {"moe.shared_expert.w_down.", "mlp.shared_experts.down_proj."}};
  more.insert(more.end(), experts.begin(), experts.end());
  TensorNames names = llama_names_with(
      std::move(more), "mlp.experts.",
      {{"w_gate.", "gate_proj."}, {"w_up.", "up_proj."}, {"w_down.", "down_proj."}});
  names.more_layers = true;
  return names;
}

TensorNames with_layers_ahead(TensorNames names) {
  for (const NamePair& row :
       {NamePair{"mtp.enorm.", "enorm."}, NamePair{"mtp.hnorm.", "hnorm."},
        NamePair{"mtp.eh_proj.", "eh_proj."}, NamePair{"mtp.final_norm.", "shared_head.norm."}}) {
    names.layer.push_back(row);
  }
  return names;
}

TensorNames deepseek_names(std::vector<NamePair> more) {
  const std::vector<NamePair> latent = {{"attention.wq_a.", "self_attn.q_a_proj."},
                                        {"attention.q_a_norm.", "self_attn.q_a_layernorm."},
                                        {"attention.wq_b.", "self_attn.q_b_proj."},
                                        {"attention.wkv_a.", "self_attn.kv_a_proj_with_mqa."},
                                        {"attention.kv_a_norm.", "self_attn.kv_a_layernorm."},
                                        {"attention.wkv_b.", "self_attn.kv_b_proj."}};
  more.insert(more.begin(), latent.begin(), latent.end());
  return names_with_shared_experts(std::move(more));
}

GgufTables llama_gguf(std::string_view architecture) {
  GgufTables gguf = {
      .architecture = architecture,
      .top = {{"tok_embeddings.", "token_embd."},
              {"final_norm.", "output_norm."},
              {"lm_head.", "output."}},
      .layer = {{"attention_norm.", "attn_norm."},
                {"attention.wq.", "attn_q."},
                {"attention.wk.", "attn_k."},
                {"attention.wv.", "attn_v."},
                {"attention.q_norm.", "attn_q_norm."},
                {"attention.k_norm.", "attn_k_norm."},
                {"attention.wo.", "attn_output."},
                {"ffn_norm.", "ffn_norm."},
                {"feed_forward.w_gate.", "ffn_gate."},
                {"feed_forward.w_up.", "ffn_up."},
                {"feed_forward.w_down.", "ffn_down."}},
      .keys = common_gguf_keys(),
      .scalings = {"yarn"},
  };
  add_scaling_keys(gguf);
  for (const GgufKey& key :
       {GgufKey{.key = "attention.head_count_kv", .made = key_groups_of, .back = take_key_groups},
        GgufKey{"attention.layer_norm_rms_epsilon", "norm_epsilon"},
        GgufKey{"attention.key_length", "kv_channels"},
        GgufKey{"attention.value_length", "kv_channels"},
        GgufKey{
            .key = "rope.dimension_count", .made = turned_channels, .back = take_turned_channels},
        GgufKey{"rope.freq_base", "rotary_config.rotary_base"}}) {
    gguf.keys.push_back(key);
  }
  return gguf;
}

GgufTables deepseek_gguf() {
  GgufTables gguf = llama_gguf("deepseek2");
  gguf.paired = true;
  for (const NamePair& row :
       {NamePair{"attention.wq_a.", "attn_q_a."}, NamePair{"attention.q_a_norm.", "attn_q_a_norm."},
        NamePair{"attention.wq_b.", "attn_q_b."}, NamePair{"attention.wkv_a.", "attn_kv_a_mqa."},
        NamePair{"attention.kv_a_norm.", "attn_kv_a_norm."}}) {
    gguf.layer.push_back(row);
  }
  gguf.head_rows = {
      {.name = {"attention.wkv_b.", "attn_k_b."}, .rows = "qk_head_dim", .transposed = true},
      {.name = {"attention.wkv_b.", "attn_v_b."}, .before = "qk_head_dim", .rows = "v_head_dim"}};
  for (GgufKey& key : gguf.keys) {
    if (key.key == "attention.head_count_kv") {
      key = {.key = key.key, .made = one_key_head};
    } else if (key.key == "attention.key_length") {
      key = {.key = key.key, .made = latent_key_length};
    } else if (key.key == "attention.value_length") {
      key = {key.key, "kv_lora_rank"};
    }
  }
  for (const GgufKey& key : {GgufKey{"attention.q_lora_rank", "q_lora_rank"},
                             GgufKey{"attention.kv_lora_rank", "kv_lora_rank"},
                             GgufKey{.key = "attention.key_length_mla",
                             .made = latent_head_length,
                             .back = take_latent_head_length},
                             GgufKey{"attention.value_length_mla", "v_head_dim"}}) {
    gguf.keys.push_back(key);
  }
  use_latent_scaling(gguf);
  add_shared_experts(gguf);
  gguf.limits = joined(only("norm_epsilon", 1e-6, "llama.cpp has one for all norms: use 1e-6"),
                       only("qkv_has_bias", false, "use False"), no_output_bias_in_gguf(),
                       std::make_shared<LatentQueries>(), std::make_shared<SomeSharedExpert>());
  gguf.takes_adapters = false;
  return gguf;
}

GgufTables llama_gguf_without_gate(std::string_view architecture) {
  GgufTables gguf = llama_gguf(architecture);
  std::erase_if(gguf.layer, [](const NamePair& row) { return row.file == "ffn_gate."; });
  return gguf;
}

void use_layer_norm(GgufTables& gguf) {
  for (GgufKey& key : gguf.keys) {
    if (key.ours == "norm_epsilon") {
      key.key = "attention.layer_norm_epsilon";
    }
  }
}

void rename(GgufTables& gguf, std::string_view logical, std::string_view file) {
  for (NamePair& row : gguf.layer) {
    if (row.logical == logical) {
      row.file = file;
    }
  }
}

void add_window(GgufTables& gguf) {
  gguf.keys.push_back(
      {.key = "attention.sliding_window", .made = window_of_tokens, .back = take_window});
}

void add_norms_of_outputs(GgufTables& gguf) {
  gguf.layer.push_back({"attention_post_norm.", "post_attention_norm."});
  gguf.layer.push_back({"ffn_post_norm.", "post_ffw_norm."});
}

void join_heads(GgufTables& gguf) {
  for (const char* part : {"attention.wq.", "attention.wk.", "attention.wv."}) {
    rename(gguf, part, "attn_qkv.");
  }
}

void add_experts(GgufTables& gguf) {
  gguf.layer.push_back({"moe.router.", "ffn_gate_inp."});
  gguf.expert = {
      {"w_gate.", "ffn_gate_exps."}, {"w_up.", "ffn_up_exps."}, {"w_down.", "ffn_down_exps."}};
  for (const GgufKey& key : {GgufKey{"expert_count", "moe_config.num_experts"},
                             GgufKey{"expert_used_count", "moe_config.moe_router_topk"},
                             GgufKey{.key = "expert_feed_forward_length",
                             .made = expert_width_of,
                             .back = take_expert_width}}) {
    gguf.keys.push_back(key);
  }
}

void use_expert_width(GgufTables& gguf) {
  for (GgufKey& key : gguf.keys) {
    if (key.key == "feed_forward_length") {
      key = {.key = key.key, .made = expert_width_of, .back = take_only_width};
    }
  }
}

void add_shared_experts(GgufTables& gguf) {
  add_experts(gguf);
  for (const NamePair& row : {NamePair{"moe.shared_expert.w_gate.", "ffn_gate_shexp."},
                              NamePair{"moe.shared_expert.w_up.", "ffn_up_shexp."},
                              NamePair{"moe.shared_expert.w_down.", "ffn_down_shexp."}}) {
    gguf.layer.push_back(row);
  }
  for (const GgufKey& key :
       {GgufKey{"leading_dense_block_count", "moe_config.first_k_dense_replace"},
        GgufKey{
            .key = "expert_shared_count", .made = shared_experts_of, .back = take_shared_experts},
        GgufKey{.key = "expert_gating_func", .made = gating_of, .back = take_gating},
        GgufKey{.key = "expert_group_count", .made = expert_groups_of, .back = take_expert_groups},
        GgufKey{
            .key = "expert_group_used_count", .made = chosen_groups_of, .back = take_chosen_groups},
        GgufKey{"expert_weights_scale", "moe_config.moe_router_topk_scaling_factor"},
        GgufKey{.key = "expert_weights_norm",
        .made = normalises_gates,
        .back = take_normalises_gates}}) {
    gguf.keys.push_back(key);
  }
}

Rules no_window_in_gguf() { return {std::make_shared<NoWindow>()}; }
Rules no_output_bias_in_gguf() {
  return {only("out_proj_has_bias", false, "use False"), only("mlp_has_bias", false, "use False")};
}

Rules usual_scale_in_gguf() { return {std::make_shared<UsualScale>()}; }
Rules windows_in_gguf(int64_t period) { return {std::make_shared<WindowPeriod>(period)}; }
Rules heads_fill_width_in_gguf() { return {std::make_shared<HeadsFillWidth>()}; }
Rules own_head_in_gguf() {
  return {only("untie_embeddings_and_output_weights", true,
               "llama.cpp wants a matrix of its own: use True")};
}

Rules no_dense_layers_in_gguf() { return {std::make_shared<NoDenseLayers>()}; }

std::vector<GgufKey> common_gguf_keys() {
  return {{"block_count", "num_layers"},
          {"context_length", "max_position_embeddings"},
          {"embedding_length", "hidden_size"},
          {"feed_forward_length", "ffn_hidden_size"},
          {"attention.head_count", "num_attention_heads"},
          {"vocab_size", "vocab_size"}};
}

}  // namespace tapestry::architectures
