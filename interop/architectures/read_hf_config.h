// What a Hugging Face config.json says of a model, in the keys of model_config and moe_config.
//
// Source of names, meanings and defaults: the configuration classes of the transformers library,
// which writes and reads these files (LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config,
// Qwen2MoeConfig, GPT2Config). Their balance loss (router_aux_loss_coef), of training and off
// unless output_router_logits is set, is another than those here and not read.
#pragma once

#include <string>
#include <vector>

#include "parallel_core/config/read/model_folder.h"

namespace tapestry {

/// Reads DIR/config.json. Layers that predict further tokens (mtp_num_layers) count only as far as
/// the weights beside it have them, which transformers does not save. IoError if it is missing or
/// no JSON (duplicate keys included); ValueError, with all findings, for a wrong type of a value
/// and for what models here do not have, each by its name: unknown types, scalings of the rotation,
/// windows of some layers, activations, quantised weights.
HfConfig read_hf_config(const std::string& folder);

/// The same on the content; `file` stands for the file in messages.
HfConfig parse_hf_config(const std::string& text, const std::string& file);

}  // namespace tapestry
