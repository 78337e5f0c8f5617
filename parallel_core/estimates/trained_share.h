// How much of a model is trained where adapters are (lora_config), on one rank.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/pipeline_parallel/pipeline_stage.h"

namespace tapestry {

/// Elements, in double so that absurd sizes do no harm.
struct TrainedShare {
  double adapters = 0;  ///< A, B and magnitudes
  double saved = 0;     ///< of tensors of the base that are trained whole
  double ranks = 0;     ///< sum of the ranks of all adapters: what they keep of a token
  /// Layers whose queries, keys and values, or whose first matrix of the MLP, have no adapter, so
  /// that backward does not need what these read.
  int64_t unread_attention_inputs = 0;
  int64_t unread_mlp_inputs = 0;

  double trained() const { return adapters + saved; }
};

/// Of one rank's part of the model. Without use_lora nothing.
/// ValueError as plan_adapter().
TrainedShare trained_share(const TransformerConfig& config,
                           const PipelineStage& stage,
                           const ModelShares& shares);
/// Of the whole model.
TrainedShare trained_share(const TransformerConfig& config);

/// "12,615,680 of 1,112,664,064 parameters are trained (1.13 %), adapters beside 154 matrices"; of
/// a configuration with use_lora.
std::string trained_share_text(const TransformerConfig& config);

}  // namespace tapestry
