#include "interop/architectures/hf_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "autograd/io/atomic_file.h"
#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/hf_names.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;
using config::Value;
using HfJson = nlohmann::json;  // keys in the order of the alphabet, as transformers has them

HfJson id_json(const std::optional<int64_t>& id) { return id ? HfJson(*id) : HfJson(); }

HfJson eos_json(const TokenIds& ids) {
  return ids.eos.empty()       ? HfJson()
         : ids.eos.size() == 1 ? HfJson(ids.eos.front())
                               : HfJson(ids.eos);
}

HfJson json_of(const Value& value) {
  if (value.is_null()) {
    return {};
  }
  if (value.is<Value::List>()) {
    HfJson list = HfJson::array();
    for (const Value& item : value.as<Value::List>()) {
      list.push_back(json_of(item));
    }
    return list;
  }
  return value.is<bool>()      ? HfJson(value.as<bool>())
         : value.is<int64_t>() ? HfJson(value.as<int64_t>())
         : value.is<double>()  ? HfJson(value.as<double>())
                               : HfJson(value.as<std::string>());
}

// What all types have.
HfJson common_json(const TransformerConfig& c,
                   const std::string& type,
                   DType stored,
                   const TokenIds& ids) {
  HfJson json;
  json["model_type"] = type;
  json["torch_dtype"] = std::string(name_of(stored));
  json["vocab_size"] = c.vocab_size;
  json["tie_word_embeddings"] = !c.untie_embeddings_and_output_weights;
  json["initializer_range"] = c.init_method_std;
  json["bos_token_id"] = id_json(ids.bos);
  json["eos_token_id"] = eos_json(ids);
  if (ids.pad) {
    json["pad_token_id"] = *ids.pad;
  }
  return json;
}

void add_sizes(HfJson& json, const TransformerConfig& c) {
  json["hidden_size"] = c.hidden_size;
  json["intermediate_size"] = c.ffn_hidden_size;
  json["num_hidden_layers"] = c.num_layers;
  json["num_attention_heads"] = c.num_attention_heads;
  json["num_key_value_heads"] = c.num_query_groups;
  json["head_dim"] = c.kv_channels.value();
  json["max_position_embeddings"] = c.max_position_embeddings.value();
}

void add_gpt2(HfJson& json, const TransformerConfig& c) {
  json["architectures"] = {"GPT2LMHeadModel"};
  json["n_positions"] = c.max_position_embeddings.value();
  json["n_embd"] = c.hidden_size;
  json["n_layer"] = c.num_layers;
  json["n_head"] = c.num_attention_heads;
  json["n_inner"] = c.ffn_hidden_size;
  json["activation_function"] = c.hidden_act == "gelu" ? "gelu" : "gelu_new";
  json["layer_norm_epsilon"] = c.norm_epsilon;
  json["resid_pdrop"] = c.hidden_dropout;
  json["embd_pdrop"] = c.hidden_dropout;
  json["attn_pdrop"] = c.attention_dropout;
  json["scale_attn_weights"] = true;
  json["scale_attn_by_inverse_layer_idx"] = false;
  json["reorder_and_upcast_attn"] = false;
  json["use_cache"] = true;
}

// What the balance loss here is where transformers adds one: there the shares of the k choices add
// up to k, and layers are averaged.
double hf_aux_loss_coef(const TransformerConfig& c) {
  double layers = 0;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    layers += is_moe_layer(c, layer) ? 1 : 0;
  }
  double coeff = 0;
  for (const MoEBalanceLoss& loss : c.moe.balance_losses) {
    coeff += loss.type == "aux_loss" ? loss.coeff : 0;
  }
  return coeff * layers / static_cast<double>(c.moe.moe_router_topk);
}

void add_mixtral(HfJson& json, const TransformerConfig& c) {
  json["architectures"] = {"MixtralForCausalLM"};
  json["intermediate_size"] = moe_ffn_hidden_size(c);
  json["num_local_experts"] = c.moe.num_experts;
  json["sliding_window"] = c.window_size ? HfJson(c.window_size->front() + 1) : HfJson();
  json["router_jitter_noise"] = c.moe.moe_input_jitter_eps.value_or(0.0);
}

void add_qwen2_moe(HfJson& json, const TransformerConfig& c) {
  json["architectures"] = {"Qwen2MoeForCausalLM"};
  json["moe_intermediate_size"] = moe_ffn_hidden_size(c);
  json["shared_expert_intermediate_size"] = c.moe.moe_shared_expert_intermediate_size.value();
  json["num_experts"] = c.moe.num_experts;
  json["norm_topk_prob"] = c.moe.norm_topk_prob.value();
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = HfJson::array();
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    if (!is_moe_layer(c, layer)) {
      json["mlp_only_layers"].push_back(layer);
    }
  }
}

void add_qwen2_window(HfJson& json, const TransformerConfig& c) {
  const bool window = c.window_size.has_value();
  json["use_sliding_window"] = window;
  json["sliding_window"] = window ? HfJson(c.window_size->front() + 1) : HfJson();
  json["max_window_layers"] = window ? 0 : c.num_layers;  // the first so many have none
}

HfJson rope_scaling(const RotaryConfig& rotary) {
  if (rotary.rope_type == "llama3") {
    return {{"rope_type", "llama3"},
            {"factor", rotary.rope_scaling_factor},
            {"low_freq_factor", rotary.low_freq_factor},
            {"high_freq_factor", rotary.high_freq_factor},
            {"original_max_position_embeddings", rotary.original_max_position_embeddings}};
  }
  const double factor = rotary.seq_len_interpolation_factor.value_or(1.0);
  return factor == 1.0 ? HfJson() : HfJson{{"rope_type", "linear"}, {"factor", factor}};
}

void add_llama(HfJson& json, const TransformerConfig& c, const std::string& type) {
  add_sizes(json, c);
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = c.norm_epsilon;
  json["rope_theta"] = c.rotary_config.rotary_base;
  json["rope_scaling"] = rope_scaling(c.rotary_config);
  json["attention_dropout"] = c.attention_dropout;
  json["use_cache"] = true;
  if (c.moe.num_experts > 1) {
    json["num_experts_per_tok"] = c.moe.moe_router_topk;
    json["output_router_logits"] = false;
    json["router_aux_loss_coef"] = hf_aux_loss_coef(c);
  }
  if (type == "mixtral") {
    add_mixtral(json, c);
  } else if (type == "qwen2_moe") {
    add_qwen2_moe(json, c);
    add_qwen2_window(json, c);
  } else if (type == "qwen2") {
    json["architectures"] = {"Qwen2ForCausalLM"};
    add_qwen2_window(json, c);
  } else {
    json["architectures"] = {"LlamaForCausalLM"};
    json["attention_bias"] = c.qkv_has_bias;
    json["mlp_bias"] = c.mlp_has_bias;
    json["pretraining_tp"] = 1;
  }
}

void add_tapestry(HfJson& json, const TransformerConfig& c) {
  AllConfig all;
  all.model_config = c;
  all.moe_config = c.moe;
  const auto add = [&](const char* section, const std::vector<std::string>& names) {
    HfJson keys = HfJson::object();
    for (const std::string& name : names) {
      keys[name] = json_of(config::find_key(section, name)->field.get(all));
    }
    json[section] = std::move(keys);
  };
  add("model_config", described_keys());
  if (c.moe.num_experts > 1) {
    add("moe_config", described_moe_keys());
  }
}

std::string written(const HfJson& json) { return json.dump(2) + "\n"; }

// Whether both say the same of a model, spellings and keys that say nothing of it aside.
bool says_the_same(const HfConfig& a, const HfConfig& b) {
  const auto values = [](const HfConfig& file) {
    std::map<std::string, std::string> out;
    for (const HfSetting& setting : file.settings) {
      out[concat(setting.section, ".", setting.key)] = config::to_yaml(setting.value);
    }
    return out;
  };
  return a.model_type == b.model_type && a.token_ids == b.token_ids && a.complete && b.complete &&
         a.undecided.empty() && values(a) == values(b);
}

// Whether a file is of a language model without its output layer ("LlamaModel"): what is saved here
// has one.
bool names_headless_class(const HfJson& json) {
  const auto classes = json.find("architectures");
  if (classes == json.end() || !classes->is_array() || classes->empty() ||
      !classes->front().is_string()) {
    return false;
  }
  const auto& name = classes->front().get_ref<const std::string&>();
  return name.ends_with("Model") && !name.ends_with("LMHeadModel");
}

// The text of the source; its dtype is replaced if it is another, and its class by that of `ours`
// if it has no output layer.
std::string fitted(const std::string& text, DType stored, const HfJson& ours) {
  HfJson json = HfJson::parse(text);
  const char* name =
      json.contains("dtype") && !json.contains("torch_dtype") ? "dtype" : "torch_dtype";
  const std::string dtype(name_of(stored));
  const bool headless = names_headless_class(json);
  if (json.contains(name) && json.at(name) == dtype && !headless) {
    return text;
  }
  json[name] = dtype;
  if (json.contains("dtype")) {
    json["dtype"] = dtype;
  }
  if (headless) {
    json["architectures"] = ours.at("architectures");
  }
  return written(json);
}

std::string content_if_there(const fs::path& path) {
  return fs::exists(path) ? read_file(path.string()) : std::string();
}

}  // namespace

HfSource read_hf_source(const std::string& path) {
  HfSource source;
  if (fs::is_directory(path)) {
    source.config_json = content_if_there(fs::path(path) / "config.json");
    source.generation_config = content_if_there(fs::path(path) / "generation_config.json");
  }
  return source;
}

std::vector<std::string> tokenizer_files_in(const std::string& folder) {
  std::vector<std::string> found;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "chat_template.jinja"}) {
    const fs::path path = fs::path(folder) / name;
    if (fs::exists(path)) {
      found.push_back(path.string());
    }
  }
  return found;
}

std::string model_config_json(const TransformerConfig& config,
                              const std::string& type,
                              DType stored,
                              const HfSource& source) {
  HfJson json = common_json(config, type, stored, source.token_ids);
  if (type == "gpt2") {
    add_gpt2(json, config);
  } else if (type == "tapestry") {
    add_sizes(json, config);
    add_tapestry(json, config);
  } else {
    add_llama(json, config, type);
  }
  std::string text = written(json);
  if (!source.config_json.empty() &&
      says_the_same(parse_hf_config(source.config_json, "config.json"),
                    parse_hf_config(text, "config.json"))) {
    return fitted(source.config_json, stored, json);
  }
  return text;
}

std::string own_model_config_json(const TransformerConfig& config,
                                  DType stored,
                                  const TokenIds& token_ids) {
  HfJson json = common_json(config, "tapestry", stored, token_ids);
  add_sizes(json, config);
  return written(json);
}

std::string generation_config_json(const HfSource& source) {
  const TokenIds& ids = source.token_ids;
  if (source.keeps_generation_config && !source.generation_config.empty()) {
    return source.generation_config;
  }
  if (!source.generation_config.empty()) {
    const HfJson json = HfJson::parse(source.generation_config, nullptr, false);
    const auto has = [&](const char* name, const HfJson& id) {
      return (json.contains(name) ? json.at(name) : HfJson()) == id;
    };
    if (json.is_object() && has("bos_token_id", id_json(ids.bos)) &&
        has("eos_token_id", eos_json(ids)) && has("pad_token_id", id_json(ids.pad))) {
      return source.generation_config;
    }
  }
  return written({{"_from_model_config", true},
                  {"bos_token_id", id_json(ids.bos)},
                  {"eos_token_id", eos_json(ids)},
                  {"pad_token_id", id_json(ids.pad)}});
}

namespace {

std::vector<int64_t> ends_in(const HfJson& json) {
  std::vector<int64_t> ends;
  const HfJson found = json.value("eos_token_id", HfJson());
  for (const HfJson& id : found.is_array() ? found : HfJson::array({found})) {
    if (id.is_number_integer()) {
      ends.push_back(id.get<int64_t>());
    }
  }
  return ends;
}

HfJson generation_json(const std::string& text, const std::string& path) {
  HfJson json = HfJson::parse(text, nullptr, false);
  check<IoError>(json.is_object(), path, ": is no JSON object");
  return json;
}

}  // namespace

std::string generation_config_with_ends(const std::string& text,
                                        const std::vector<int64_t>& ends,
                                        const std::string& path) {
  HfJson json = generation_json(text, path);
  const std::vector<int64_t> known = ends_in(json);
  const auto has = [](const std::vector<int64_t>& ids, int64_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  if (std::all_of(ends.begin(), ends.end(), [&](int64_t id) { return has(known, id); })) {
    return text;
  }
  std::vector<int64_t> all = ends;
  for (const int64_t id : known) {
    if (!has(all, id)) {
      all.push_back(id);
    }
  }
  json["eos_token_id"] = all.size() == 1 ? HfJson(all.front()) : HfJson(all);
  return written(json);
}

std::vector<int64_t> generation_config_ends(const std::string& folder) {
  const std::string path = (fs::path(folder) / "generation_config.json").string();
  const std::string text = content_if_there(path);
  return text.empty() ? std::vector<int64_t>() : ends_in(generation_json(text, path));
}

std::map<std::string, std::string> hf_files(const TransformerConfig& config,
                                            bool named,
                                            DType stored,
                                            const HfSource& source) {
  std::map<std::string, std::string> files;
  files["config.json"] = named ? model_config_json(config, file_model_type(config), stored, source)
                               : own_model_config_json(config, stored, source.token_ids);
  files["generation_config.json"] = generation_config_with_ends(
      generation_config_json(source), source.trained_ends, "generation_config.json");
  for (const auto& [name, content] : source.files) {
    files[name] = content;
  }
  return files;
}

void check_hf_config(const TransformerConfig& config, const std::string& path) {
  if (!fs::is_directory(path) || !fs::exists(fs::path(path) / "config.json")) {
    return;
  }
  const std::vector<std::string> found = differences(config, read_hf_config(path));
  if (found.empty()) {
    return;
  }
  std::string text = concat(path, ": the weights are of another model than the configuration's");
  for (const std::string& difference : found) {
    text += concat("\n  ", difference);
  }
  throw ValueError(
      concat(text,
             "\nSet the keys so, or leave them out and name the folder with model_config.from_hf. "
             "Where the change is meant, name the file of the weights in place of its folder: then "
             "config.json is not looked at"));
}

}  // namespace tapestry
