#include "diagnosis/verify/zero_gradient.h"

namespace tapestry {

ZeroGradient has_zero_gradient(const TransformerConfig& config, const std::string& logical_name) {
  const bool key_bias = logical_name.ends_with(".attention.wk.bias") && !config.qk_layernorm;
  const bool key_norm_bias = logical_name.ends_with(".attention.k_norm.bias");
  if (!key_bias && !key_norm_bias) {
    return ZeroGradient::kNone;
  }
  if (config.position_embedding_type != "rope") {
    return ZeroGradient::kAll;
  }
  return config.rotary_config.rotary_percent < 1 ? ZeroGradient::kPart : ZeroGradient::kNone;
}

}  // namespace tapestry
