#include "parallel_core/config/lora_keys.h"

#include <algorithm>

namespace tapestry {

bool saves_output_layer(const LoraConfig& lora) {
  return std::any_of(
      lora.modules_to_save.begin(), lora.modules_to_save.end(), [](const std::string& text) {
        return NamePattern(text, "lora_config.modules_to_save").matches_end("lm_head");
      });
}

}  // namespace tapestry
