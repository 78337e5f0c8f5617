// What a run with adapters (lora_config.use_lora) is beside, and what its checkpoints say of it.
#pragma once

#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"

namespace tapestry {

struct AdapterRun {
  bool on = false;             ///< lora_config.use_lora
  AdapterBase base;            ///< without a path: the run's start values
  std::string adapter;         ///< folder that the adapter comes from; empty: it begins anew
  std::string adapter_config;  ///< for checkpoints: content of adapter_config.json
  std::string base_model;      ///< and of base_model.json

  /// Whether the base, or the whole model of a run without adapters, comes from files.
  bool loads_base() const { return !on || !base.path.empty(); }
};

/// Of a run that takes its weights from `weights`, as resolve_checkpoint gives it: a checkpoint of
/// a run with adapters, a base, or empty. Off without use_lora. IoError if the base is gone;
/// ValueError if it is another than the adapter was trained beside, if `weights` are an adapter and
/// the run has none, and as check_adapter_config.
AdapterRun adapter_run(const AllConfig& config, const std::string& weights);

}  // namespace tapestry
