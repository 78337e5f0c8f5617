// What lora_config means together with other sections.
#include "autograd/tensor/error.h"
#include "parallel_core/config/lora_keys.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {

namespace {

// What is trained whole by its own name has a matrix of its own, which starts as the table.
void part_tied_head(Resolution& r) {
  constexpr const char* kUntie = "model_config.untie_embeddings_and_output_weights";
  constexpr const char* kSave = "lora_config.modules_to_save";
  AllConfig& config = r.config();
  if (!r.sound({kUntie, kSave}) || config.model_config.untie_embeddings_and_output_weights ||
      config.model_config.score_head) {
    return;
  }
  try {
    if (saves_output_layer(config.lora_config)) {
      config.model_config.untie_embeddings_and_output_weights = true;
      r.derived(kUntie, kSave);
    }
  } catch (const ValueError& error) {
    r.error(kSave, error.what());
  }
}

void check_adapter_start(Resolution& r) {
  constexpr const char* kB = "lora_config.lora_b_std";
  const LoraConfig& lora = r.config().lora_config;
  if (lora.adapter) {
    for (const char* key : {"lora_config.lora_a_std", kB}) {
      r.idle(key, "with lora_config.adapter, which has the start values");
    }
  } else if (lora.use_dora && lora.lora_b_std > 0 && r.sound({kB, "lora_config.use_dora"})) {
    r.error(kB, concat("is ", number_text(lora.lora_b_std),
                       " beside use_dora, whose lengths start as those of the base alone; use 0"));
  }
}

}  // namespace

void resolve_lora(Resolution& r) {
  constexpr const char* kUse = "lora_config.use_lora";
  constexpr const char* kTargets = "lora_config.target_cells";
  AllConfig& config = r.config();
  config.model_config.lora = {};
  if (!r.sound({kUse})) {
    return;
  }
  if (!config.lora_config.use_lora) {
    for (const char* key : {"lora_rank", "lora_alpha", "lora_dropout", "target_cells",
                            "exclude_cells", "lora_a_std", "lora_b_std", "use_rslora", "use_dora",
                            "bias", "modules_to_save", "adapter", "base_dtype"}) {
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
  check_adapter_start(r);
  part_tied_head(r);
  config.model_config.lora = config.lora_config;
}

}  // namespace tapestry::config
