#include "interop/architectures/own_model.h"

#include <algorithm>
#include <utility>

#include "interop/architectures/rules.h"
#include "parallel_core/config/read/parse_value.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/raw_json.h"

namespace tapestry::architectures {

namespace {

using config::Key;
using hf::Fields;
using hf::Json;

const std::vector<std::string>& described_keys() {
  static const std::vector<std::string> keys = {"vocab_size",
                                                "num_layers",
                                                "hidden_size",
                                                "ffn_hidden_size",
                                                "num_attention_heads",
                                                "group_query_attention",
                                                "num_query_groups",
                                                "kv_channels",
                                                "seq_length",
                                                "max_position_embeddings",
                                                "position_embedding_type",
                                                "rotary_config.rotary_percent",
                                                "rotary_config.rotary_interleaved",
                                                "rotary_config.seq_len_interpolation_factor",
                                                "rotary_config.rotary_base",
                                                "rotary_config.rope_type",
                                                "rotary_config.rope_scaling_factor",
                                                "rotary_config.low_freq_factor",
                                                "rotary_config.high_freq_factor",
                                                "rotary_config.original_max_position_embeddings",
                                                "normalization",
                                                "norm_epsilon",
                                                "hidden_act",
                                                "qkv_has_bias",
                                                "out_proj_has_bias",
                                                "mlp_has_bias",
                                                "qk_layernorm",
                                                "window_size",
                                                "apply_residual_connection_post_norm",
                                                "use_final_norm",
                                                "use_sandwich_norm",
                                                "untie_embeddings_and_output_weights",
                                                "init_method_std",
                                                "attention_dropout",
                                                "hidden_dropout"};
  return keys;
}

const std::vector<std::string>& described_moe_keys() {
  static const std::vector<std::string> keys = {"num_experts",
                                                "moe_router_topk",
                                                "moe_layer_freq",
                                                "first_k_dense_replace",
                                                "moe_ffn_hidden_size",
                                                "moe_shared_expert_intermediate_size",
                                                "use_shared_expert_gating",
                                                "moe_router_score_function",
                                                "moe_router_pre_softmax",
                                                "norm_topk_prob",
                                                "moe_router_topk_scaling_factor",
                                                "topk_method",
                                                "moe_router_num_groups",
                                                "moe_router_group_topk",
                                                "moe_router_enable_expert_bias",
                                                "moe_router_bias_update_rate",
                                                "moe_router_load_balancing_type",
                                                "moe_aux_loss_coeff",
                                                "aux_loss_types",
                                                "aux_loss_factors",
                                                "expert_group_size",
                                                "moe_z_loss_coeff",
                                                "moe_input_jitter_eps",
                                                "moe_expert_capacity_factor",
                                                "moe_token_drop_policy"};
  return keys;
}

void read_keys(Fields& file,
               const std::string& section,
               const Json& object,
               const std::vector<std::string>& known) {
  for (const auto& [name, json] : object.items()) {
    const std::string path = concat(section, ".", name);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      file.finding(path, "unknown key");
      continue;
    }
    const Key& key = *config::find_key(section, name);
    std::string error;
    const Value value =
        config::parse_value(key, config::raw_node(json, {file.out.file}, file.findings), error);
    error = error.empty() ? config::complaint(key, value) : error;
    if (!error.empty()) {
      file.finding(path, error);
      continue;
    }
    file.set_value(name, value, path, json.dump());
    file.out.settings.back().section = section;
  }
}

}  // namespace

// Our own: the keys as they are. Earlier releases wrote some sizes alone.
void read_own_model(Fields& file) {
  file.read_token_ids({});
  const Json* section = file.find("model_config");
  if (section == nullptr) {
    file.out.complete = false;
    constexpr std::pair<const char*, const char*> kSizes[] = {
        {"vocab_size", "vocab_size"},
        {"hidden_size", "hidden_size"},
        {"intermediate_size", "ffn_hidden_size"},
        {"num_hidden_layers", "num_layers"},
        {"num_attention_heads", "num_attention_heads"},
        {"num_key_value_heads", "num_query_groups"},
        {"head_dim", "kv_channels"},
        {"max_position_embeddings", "max_position_embeddings"}};
    for (const auto& [theirs, ours] : kSizes) {
      if (file.find(theirs) != nullptr) {
        file.set(ours, file.size(theirs, 1), theirs);
      }
    }
    if (file.find("tie_word_embeddings") != nullptr) {
      file.read_tie(false);
    }
    return;
  }
  if (!section->is_object()) {
    file.finding("model_config", concat("expected an object, got ", section->dump()));
    return;
  }
  read_keys(file, "model_config", *section, described_keys());
  const Json* experts = file.find("moe_config");
  if (experts == nullptr) {
    file.set_moe("num_experts", Value(int64_t{1}), "moe_config", "null", file.has("moe_config"));
  } else if (!experts->is_object()) {
    file.finding("moe_config", concat("expected an object, got ", experts->dump()));
  } else {
    read_keys(file, "moe_config", *experts, described_moe_keys());
  }
}

void write_own_sizes(const TransformerConfig& c, Json& json) {
  json["vocab_size"] = c.vocab_size;
  json["initializer_range"] = c.init_method_std;
  json["hidden_size"] = c.hidden_size;
  json["intermediate_size"] = c.ffn_hidden_size;
  json["num_hidden_layers"] = c.num_layers;
  json["num_attention_heads"] = c.num_attention_heads;
  json["num_key_value_heads"] = c.num_query_groups;
  json["head_dim"] = c.kv_channels.value();
  json["max_position_embeddings"] = c.max_position_embeddings.value();
}

void write_own_model(const AllConfig& config, Json& json) {
  write_own_sizes(config.model_config, json);
  const auto add = [&](const char* section, const std::vector<std::string>& names) {
    Json keys = Json::object();
    for (const std::string& name : names) {
      keys[name] = json_of(config::find_key(section, name)->field.get(config));
    }
    json[section] = std::move(keys);
  };
  add("model_config", described_keys());
  if (config.moe_config.num_experts > 1) {
    add("moe_config", described_moe_keys());
  }
}

}  // namespace tapestry::architectures
