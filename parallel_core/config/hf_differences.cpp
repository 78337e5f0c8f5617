// Where a run's configuration is not that of a config.json.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/read_hf_config.h"
#include "parallel_core/config/schema.h"

namespace tapestry {

namespace {

using config::Key;
using config::Value;

// Names that mean one thing are one.
Value canonical(const Value& value) {
  if (value.is<std::string>()) {
    const auto& text = value.as<std::string>();
    return {std::string(text == "FusedRMSNorm"   ? "RMSNorm"
                        : text == "fused_swiglu" ? "swiglu"
                                                 : text)};
  }
  return value;
}

}  // namespace

std::string but_file_says(const HfSetting& setting, const std::string& file) {
  const std::string ours = config::to_yaml(setting.value);
  const bool alike = ours == setting.hf_text || nlohmann::json::parse(setting.hf_text).is_number();
  return concat("but ", setting.hf_name, " of ", file,
                setting.written ? " is " : ", which leaves it out, is ", setting.hf_text,
                alike ? std::string()
                      : concat(", that is ",
                               config::last_name(*config::find_key("model_config", setting.key)),
                               ": ", ours));
}

std::vector<std::string> differences(const TransformerConfig& config,
                                     const HfConfig& file,
                                     const std::string& section) {
  AllConfig all;
  all.model_config = config;
  std::vector<std::string> out;
  for (const HfSetting& setting : file.settings) {
    const Key& key = *config::find_key("model_config", setting.key);
    const bool rotates = config.position_embedding_type == "rope";
    if (!setting.compared || (setting.key.starts_with("rotary_config.") && !rotates)) {
      continue;
    }
    std::string name = setting.key;
    std::string ours = config::to_yaml(canonical(key.field.get(all)));
    bool same = ours == config::to_yaml(setting.value);
    if (setting.key == "rotary_config.seq_len_interpolation_factor") {
      same = config.rotary_config.seq_len_interpolation_factor.value_or(1.0) ==
             (setting.value.is_null() ? 1.0 : setting.value.as<double>());
    } else if (setting.key == "max_position_embeddings" &&
               config.position_embedding_type != "learned_absolute") {
      // Without a table it is a limit, and that of a run is its seq_length unless it says more.
      const auto limit = setting.value.as<int64_t>();
      if (same || config.max_position_embeddings == config.seq_length) {
        same = config.seq_length <= limit;
        name = "seq_length";
        ours = std::to_string(config.seq_length);
      }
      same = same || config.position_embedding_type == "none";
    }
    if (!same) {
      out.push_back(
          concat(section, ".", name, " is ", ours, ", ", but_file_says(setting, file.file)));
    }
  }
  return out;
}

}  // namespace tapestry
