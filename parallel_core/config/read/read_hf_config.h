// What a Hugging Face config.json says of a model, in the keys of model_config and moe_config.
//
// Source of names, meanings and defaults: the configuration classes of the transformers library,
// which writes and reads these files (LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config,
// Qwen2MoeConfig, GPT2Config). Their balance loss (router_aux_loss_coef), of training and off
// unless output_router_logits is set, is another than those here and not read.
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
  std::string model_type;      ///< llama, mistral, mixtral, qwen2, qwen2_moe, gpt2 or tapestry
  std::optional<DType> dtype;  ///< torch_dtype, or dtype as newer writers call it
  TokenIds token_ids;          ///< with the type's defaults
  std::vector<HfSetting> settings;
  /// What the file says and one key of ours cannot; each entry names the key that has to be given.
  std::vector<std::string> undecided;
  /// False for a model that the file does not describe: one of one's own, or saved by a release
  /// that did not write model_config.
  bool complete = true;
};

/// Reads DIR/config.json. IoError if it is missing or no JSON (duplicate keys included);
/// ValueError, with all findings, for a wrong type of a value and for what models here do not have,
/// each by its name: unknown types, scalings of the rotation, windows of some layers, activations,
/// quantised weights.
HfConfig read_hf_config(const std::string& folder);

/// The same on the content; `file` stands for the file in messages.
HfConfig parse_hf_config(const std::string& text, const std::string& file);

/// "but rope_theta of DIR/config.json is 500000.0", and its value in our spelling where that is
/// another.
std::string but_file_says(const HfSetting& setting, const std::string& file);

/// Where the configuration is not that of the file: a line each, with the key in both spellings and
/// both values. Of experts, `config.moe` counts. `section` is the name of the model's section.
std::vector<std::string> differences(const TransformerConfig& config,
                                     const HfConfig& file,
                                     const std::string& section = "model_config");

/// Keys of model_config that say what weights are of, and what a run on them starts with: those
/// that a "tapestry" file holds.
const std::vector<std::string>& described_keys();
/// The same of moe_config, which such a file holds for a model with experts.
const std::vector<std::string>& described_moe_keys();

}  // namespace tapestry
