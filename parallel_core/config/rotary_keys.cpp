#include "parallel_core/config/rotary_keys.h"

#include <algorithm>
#include <map>

namespace tapestry::config {

std::vector<std::string_view> rope_types_with(std::string_view key) {
  static const std::map<std::string_view, std::vector<std::string_view>> kTypes = {
      {"rope_scaling_factor", {"llama3", "yarn", "longrope", "dynamic"}},
      {"original_max_position_embeddings", {"llama3", "yarn", "longrope", "dynamic"}},
      {"low_freq_factor", {"llama3"}},
      {"high_freq_factor", {"llama3"}},
      {"beta_fast", {"yarn"}},
      {"beta_slow", {"yarn"}},
      {"truncate", {"yarn"}},
      {"mscale", {"yarn"}},
      {"mscale_all_dim", {"yarn"}},
      {"mscale_on_angles", {"yarn"}},
      {"attention_factor", {"yarn", "longrope"}},
      {"short_factor", {"longrope"}},
      {"long_factor", {"longrope"}},
  };
  const auto found = kTypes.find(key);
  return found == kTypes.end() ? std::vector<std::string_view>() : found->second;
}

bool rope_type_reads(std::string_view rope_type, std::string_view key) {
  const std::vector<std::string_view> types = rope_types_with(key);
  return types.empty() || std::find(types.begin(), types.end(), rope_type) != types.end();
}

}  // namespace tapestry::config
