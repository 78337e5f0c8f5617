// Small models with mixtures of experts, for tests.
#pragma once

#include <functional>

#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

/// small_config() in which every layer has four experts of width 24, two for each token, and
/// what `change` does to that.
inline AllConfig mixture_config(const Overrides& overrides = {},
                                const std::function<void(MoEConfig&)>& change = nullptr) {
  AllConfig config = small_config(overrides);
  MoEConfig& moe = config.model_config.moe;
  moe.num_experts = 4;
  moe.moe_router_topk = 2;
  moe.moe_ffn_hidden_size = 24;
  moe.norm_topk_prob = true;
  if (change) {
    change(moe);
  }
  config.moe_config = moe;
  return config;
}

}  // namespace tapestry::testing
