// lora_config as adapter_config.json and the reverse: the same modules with the same ranks, alphas
// and scales, for a model that both know.
#pragma once

#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/peft_config.h"

namespace tapestry {

/// What PEFT has to read to make the adapter that `config` describes (plan_adapter), with `base`
/// for base_model_name_or_path. Modules have the shortest names that mean them and no others,
/// ranks and alphas of their own stand in rank_pattern and alpha_pattern.
///
/// `came`: the adapter_config.json that the adapter came with, or null. As long as it means the
/// same adapter it is the result, with its base and with all that it holds besides.
PeftConfig peft_config_of(const TransformerConfig& config,
                          const std::string& base,
                          const PeftConfig* came = nullptr);

/// lora_config of an adapter for a model: expressions that mean the same modules, where that can be
/// said the names of adapter_config.json as they are. `source` names the file in messages.
/// ValueError for an adapter that a model here cannot have: of embeddings, of the output layer, of
/// a router, of no module of the model at all; of part of what is one parameter and is to be
/// trained whole.
LoraConfig lora_config_of(const PeftConfig& peft,
                          const TransformerConfig& model,
                          const std::string& source);

/// lora_config of the adapter in a folder (lora_config_of), in a configuration of the model that it
/// is for: what a run or a program needs to make that model with it. lora_config.adapter is the
/// folder. Errors as read_peft_config and lora_config_of.
void configure_adapter(AllConfig& config, const std::string& folder);

/// ValueError unless the adapter in a folder, by its adapter_config.json, is the one that `config`
/// describes: another rank, other modules, another scale.
void check_adapter_config(const TransformerConfig& config, const std::string& folder);

}  // namespace tapestry
