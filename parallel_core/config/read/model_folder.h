// What the folder of a model says of it, in the keys of model_config and moe_config: the settings
// that model_config.from_hf stands for. Who reads such folders lies above and is handed in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry {

/// Ids of the tokens that begin and end a text and fill up rows.
struct TokenIds {
  std::optional<int64_t> bos;
  std::vector<int64_t> eos;  ///< several end a chat model's text
  std::optional<int64_t> pad;
  bool operator==(const TokenIds&) const = default;
};

/// One key, as the file gives it.
struct HfSetting {
  std::string key;       ///< "rotary_config.rotary_base"
  config::Value value;   ///< of that key's type
  std::string hf_name;   ///< "rope_theta"
  std::string hf_text;   ///< its value as JSON: "500000.0"
  bool written = true;   ///< false: left out of the file, the default of the model's type
  bool compared = true;  ///< false: a run may choose otherwise, as with dropout
  std::string section = "model_config";
};

struct HfConfig {
  std::string file;            ///< DIR/config.json
  std::string remark = {};     ///< what of the file is not read; empty: nothing to say
  std::string model_type;      ///< "llama", or "tapestry" for one of our own
  std::optional<DType> dtype;  ///< torch_dtype, or dtype as newer writers call it
  TokenIds token_ids;          ///< with the type's defaults
  std::vector<HfSetting> settings;
  /// What the file says and one key of ours cannot; each entry names the key that has to be given.
  std::vector<std::string> undecided;
  /// False for a model that the file does not describe: one of one's own, or saved by a release
  /// that did not write model_config.
  bool complete = true;
};

/// Tokens of the longest text that the model is made for: max_position_embeddings, times the factor
/// of a rotation whose base grows with the text (rope_type dynamic). 0 if the file does not say it.
int64_t longest_text(const HfConfig& file);

/// "but rope_theta of DIR/config.json is 500000.0", and its value in our spelling where that is
/// another.
std::string but_file_says(const HfSetting& setting, const std::string& file);

/// Where the configuration is not that of the file: a line each, with the key in both spellings and
/// both values. Of experts, `config.moe` counts. `section` is the name of the model's section.
std::vector<std::string> differences(const TransformerConfig& config,
                                     const HfConfig& file,
                                     const std::string& section = "model_config");

namespace config {

/// Reads a model's folder. Errors are IoError and ValueError, whose text becomes a finding.
using ReadModelFolder = HfConfig (*)(const std::string& folder);

/// The name under which values that mean the same are compared: RMSNorm for FusedRMSNorm, swiglu
/// for fused_swiglu.
Value canonical(const Value& value);

}  // namespace config
}  // namespace tapestry
