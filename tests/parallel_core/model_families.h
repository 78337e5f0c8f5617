// Overrides of a small model that make it one of Hugging Face's; without them it is a GPT-2.
#pragma once

#include <string>

#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

inline const std::string kModel = "model_config.";
inline const std::string kUntied = kModel + "untie_embeddings_and_output_weights=True";
inline const std::string kQkvBias = kModel + "qkv_has_bias=True";

inline Overrides llama(const Overrides& more = {}) {
  Overrides out = {kModel + "position_embedding_type=rope",
                   kModel + "normalization=RMSNorm",
                   kModel + "hidden_act=swiglu",
                   kModel + "add_bias_linear=False",
                   kModel + "group_query_attention=True",
                   kModel + "num_query_groups=2"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

}  // namespace tapestry::testing
