#include "parallel_core/config/read/model_folder.h"

#include <algorithm>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/lora_keys.h"
#include "parallel_core/config/rotary_keys.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry {

using config::Key;
using config::Value;

Value config::canonical(const Value& value) {
  if (value.is<std::string>()) {
    const auto& text = value.as<std::string>();
    return {std::string(text == "FusedRMSNorm"   ? "RMSNorm"
                        : text == "fused_swiglu" ? "swiglu"
                                                 : text)};
  }
  return value;
}

namespace {

// The experts that a file describes, with the defaults of what it does not say.
MoEConfig experts_of(const HfConfig& file) {
  AllConfig all;
  for (const HfSetting& setting : file.settings) {
    if (setting.section == "moe_config") {
      config::find_key(setting.section, setting.key)->field.set(all, setting.value);
    }
  }
  return all.moe_config;
}

// Whether both have experts in the same layers, however they say it.
bool same_layers(const TransformerConfig& ours, const MoEConfig& moe) {
  TransformerConfig theirs = ours;
  theirs.moe = moe;
  const auto known = static_cast<int64_t>(moe.moe_layer_freq.size());
  const int64_t layers = known == 1 ? ours.num_layers : std::min(ours.num_layers, known);
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (is_moe_layer(ours, layer) != is_moe_layer(theirs, layer)) {
      return false;
    }
  }
  return true;
}

bool has_dense_layer(const TransformerConfig& config) {
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!is_moe_layer(config, layer)) {
      return true;
    }
  }
  return false;
}

// Whether there is nothing to compare: a value of what one of the two models has not.
bool says_nothing(const HfSetting& setting,
                  const TransformerConfig& config,
                  const MoEConfig& experts) {
  if (setting.section == "moe_config") {
    const bool both = config.moe.num_experts > 1 && experts.num_experts > 1;
    return setting.key == "first_k_dense_replace" || (setting.key != "num_experts" && !both);
  }
  if (setting.key == "ffn_hidden_size") {
    return !has_dense_layer(config);
  }
  if (setting.key == "untie_embeddings_and_output_weights" && config.lora.use_lora &&
      saves_output_layer(config.lora)) {
    return true;  // it starts as the table where the file has one matrix for both
  }
  constexpr std::string_view kRotary = "rotary_config.";
  if (setting.key.starts_with(kRotary) &&
      !config::rope_type_reads(config.rotary_config.rope_type,
                               std::string_view(setting.key).substr(kRotary.size()))) {
    return true;
  }
  return setting.key.starts_with(kRotary) && config.position_embedding_type != "rope";
}

}  // namespace

int64_t longest_text(const HfConfig& file) {
  AllConfig all;
  for (const HfSetting& setting : file.settings) {
    if (setting.section == "model_config" && !setting.value.is_null()) {
      config::find_key(setting.section, setting.key)->field.set(all, setting.value);
    }
  }
  const RotaryConfig& rotary = all.model_config.rotary_config;
  const auto positions = static_cast<double>(all.model_config.max_position_embeddings.value_or(0));
  return static_cast<int64_t>(positions *
                              (rotary.rope_type == "dynamic" ? rotary.rope_scaling_factor : 1.0));
}

std::string but_file_says(const HfSetting& setting, const std::string& file) {
  const std::string ours = config::to_yaml(setting.value);
  const bool alike =
      ours == setting.hf_text ||
      (nlohmann::json::parse(setting.hf_text).is_number() && !setting.value.is<Value::List>());
  return concat("but ", setting.hf_name, " of ", file,
                setting.written ? " is " : ", which leaves it out, is ", setting.hf_text,
                alike ? std::string()
                      : concat(", that is ",
                               config::last_name(*config::find_key(setting.section, setting.key)),
                               ": ", ours));
}

std::vector<std::string> differences(const TransformerConfig& config,
                                     const HfConfig& file,
                                     const std::string& section) {
  AllConfig all;
  all.model_config = config;
  all.moe_config = config.moe;
  const MoEConfig experts = experts_of(file);
  std::vector<std::string> out;
  for (const HfSetting& setting : file.settings) {
    const Key& key = *config::find_key(setting.section, setting.key);
    if (!setting.compared || says_nothing(setting, config, experts)) {
      continue;
    }
    std::string name = setting.key;
    std::string ours = config::to_yaml(config::canonical(key.field.get(all)));
    bool same = ours == config::to_yaml(setting.value);
    if (setting.key == "rotary_config.seq_len_interpolation_factor") {
      same = config.rotary_config.seq_len_interpolation_factor.value_or(1.0) ==
             (setting.value.is_null() ? 1.0 : setting.value.as<double>());
    } else if (setting.key == "score_head") {
      same = config.score_head || !setting.value.as<bool>();  // a language model may be given one
    } else if (setting.key == "attention_scale" && config.kv_channels) {
      TransformerConfig theirs = config;
      theirs.attention_scale =
          setting.value.is_null() ? std::nullopt : std::optional(setting.value.as<double>());
      same = attention_scale(theirs) == attention_scale(config);
    } else if (setting.key == "moe_layer_freq") {
      same = same_layers(config, experts);
      if (config.moe.first_k_dense_replace > 0) {
        name = "first_k_dense_replace";
        ours = std::to_string(config.moe.first_k_dense_replace);
      }
    } else if (setting.key == "max_position_embeddings" &&
               config.position_embedding_type != "learned_absolute") {
      // Without a table it is a limit, and that of a run is its seq_length unless it says more.
      const auto limit = setting.value.as<int64_t>();
      if (same || config.max_position_embeddings == config.seq_length) {
        same = config.seq_length <= limit;
        name = "seq_length";
        ours = std::to_string(config.seq_length);
      }
      same = same || config.position_embedding_type == "none" ||
             (config.position_embedding_type == "rope" &&
              config.rotary_config.rope_type == "dynamic");  // made for longer texts
    }
    if (!same) {
      out.push_back(concat(setting.section == "model_config" ? section : setting.section, ".", name,
                           " is ", ours, ", ", but_file_says(setting, file.file)));
    }
  }
  return out;
}

}  // namespace tapestry
