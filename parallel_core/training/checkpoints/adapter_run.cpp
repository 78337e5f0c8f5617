#include "parallel_core/training/checkpoints/adapter_run.h"

#include <filesystem>
#include <optional>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/peft_plan.h"

namespace tapestry {

namespace {

// Where the configuration says that a base is: load_checkpoint, unless that is an adapter's, or
// from_hf; empty if it says nothing.
std::string named_base(const AllConfig& config) {
  const std::string& load = config.training_config.load_checkpoint;
  try {
    const std::string resolved = load.empty() ? std::string() : resolve_checkpoint(load);
    if (!resolved.empty() && !holds_adapter(resolved)) {
      return resolved;
    }
  } catch (const IoError&) {  // a run's folder that holds nothing yet, or is gone
  }
  return config.model_config.from_hf.value_or("");
}

}  // namespace

AdapterRun adapter_run(const AllConfig& config, const std::string& weights) {
  AdapterRun run{.on = config.lora_config.use_lora};
  const bool from_adapter = !weights.empty() && holds_adapter(weights);
  if (!run.on) {
    check<ValueError>(!from_adapter, weights,
                      ": is the checkpoint of an adapter, but the run trains whole weights; set "
                      "lora_config.use_lora: True and the other keys as in its config.yaml, or "
                      "merge it with its base first (export --merge)");
    return run;
  }
  const std::optional<std::string>& given = config.lora_config.adapter;
  run.adapter = from_adapter ? weights : given ? resolve_checkpoint(*given) : std::string();
  if (from_adapter) {
    run.base = find_adapter_base(weights, named_base(config));
  } else {
    run.base.path = weights;
  }
  if (!run.adapter.empty()) {
    check_adapter_config(config.model_config, run.adapter);
  }
  if (!run.base.path.empty()) {
    const std::string path = resolve_checkpoint(run.base.path);
    if (!run.adapter.empty()) {
      check_adapter_base(run.adapter, path);
    }
    run.base.path = std::filesystem::absolute(path).lexically_normal().string();
    run.base.fingerprint = weights_fingerprint(path);
  }
  std::optional<PeftConfig> came;
  if (!run.adapter.empty()) {
    came = read_peft_config(run.adapter);
  }
  run.adapter_config =
      peft_config_text(peft_config_of(config.model_config, run.base.path, came ? &*came : nullptr));
  run.base_model = adapter_base_text(run.base);
  return run;
}

}  // namespace tapestry
