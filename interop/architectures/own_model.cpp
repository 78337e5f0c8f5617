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

// Keys of a section that say what a model is.
std::vector<std::string> described_keys(std::string_view section) {
  std::vector<std::string> out;
  for (const Key& key : config::find_section(section)->keys) {
    if (key.form != config::Form::kNone) {
      out.emplace_back(key.name);
    }
  }
  return out;
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
  read_keys(file, "model_config", *section, described_keys("model_config"));
  const Json* experts = file.find("moe_config");
  if (experts == nullptr) {
    file.set_moe("num_experts", Value(int64_t{1}), "moe_config", "null", file.has("moe_config"));
  } else if (!experts->is_object()) {
    file.finding("moe_config", concat("expected an object, got ", experts->dump()));
  } else {
    read_keys(file, "moe_config", *experts, described_keys("moe_config"));
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
  add("model_config", described_keys("model_config"));
  if (config.moe_config.num_experts > 1) {
    add("moe_config", described_keys("moe_config"));
  }
}

}  // namespace tapestry::architectures
