// Which layers of a model are mixtures of experts.
#pragma once

#include <cstdint>

#include "parallel_core/config/config.h"

namespace tapestry {

/// Whether layer number `layer`, from 0, has a mixture in place of its MLP.
inline bool is_moe_layer(const TransformerConfig& config, int64_t layer) {
  const MoEConfig& moe = config.moe;
  if (moe.num_experts <= 1 || layer < moe.first_k_dense_replace) {
    return false;
  }
  return moe.moe_layer_freq.size() == 1 ? layer % moe.moe_layer_freq.front() == 0
                                        : moe.moe_layer_freq.at(static_cast<size_t>(layer)) != 0;
}

}  // namespace tapestry
