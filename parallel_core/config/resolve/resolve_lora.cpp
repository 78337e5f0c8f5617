// What lora_config means together with other sections.
#include "parallel_core/config/resolve/resolve.h"

namespace tapestry::config {

void resolve_lora(Resolution& r) {
  constexpr const char* kUse = "lora_config.use_lora";
  constexpr const char* kTargets = "lora_config.target_cells";
  AllConfig& config = r.config();
  config.model_config.lora = {};
  if (!r.sound({kUse})) {
    return;
  }
  if (!config.lora_config.use_lora) {
    for (const char* key : {"lora_rank", "lora_alpha", "lora_dropout", "target_cells", "use_rslora",
                            "use_dora", "modules_to_save", "adapter", "base_dtype"}) {
      r.idle(concat("lora_config.", key), "without use_lora");
    }
    return;
  }
  if (config.lora_config.target_cells && r.sound({kTargets})) {
    for (const LoraCell& cell : config.lora_config.target_cells->cells) {
      if (cell.rank.value_or(1) <= 0 || cell.alpha.value_or(1) <= 0) {
        r.error(kTargets, concat("rank and alpha of the cell '", cell.cell,
                                 "' must be above 0, as lora_rank and lora_alpha must"));
      }
    }
  }
  config.model_config.lora = config.lora_config;
}

}  // namespace tapestry::config
