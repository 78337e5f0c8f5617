// What every kind of layer has in the place of attention.
#pragma once

#include <memory>
#include <vector>

#include "nn/module.h"
#include "parallel_core/config/config.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/transformer/core_attention.h"
#include "parallel_core/transformer/recompute_policy.h"

namespace tapestry {

/// What each row of a parameter [rows] or [rows, columns], as this rank has it, is to be multiplied
/// by.
struct RowFactors {
  const nn::Parameter* parameter;
  std::vector<double> factors;  ///< [rows]
};

/// The block of a layer in which tokens learn of those before them.
class TokenMixer : public nn::Module, public nn::Callable<TokenMixer> {
 public:
  /// x -> output of the same shape and the bias the layer adds (undefined if none).
  virtual OutputAndBias forward(const Tensor& x,
                                const AttentionContext& context,
                                const LayerPass& pass) = 0;
  OutputAndBias forward(const Tensor& x, const AttentionContext& context) {
    return forward(x, context, LayerPass());
  }

  /// Where tokens meet by queries and keys; null where there are none.
  virtual CoreAttention* core_attention() { return nullptr; }
  /// What of this rank's weights and biases is to be multiplied so that the scores of each head are
  /// multiplied by its factor, one for each head of all ranks, and nothing else changes. Empty
  /// without queries and keys. Scores of queries or keys that a norm has made do not follow.
  virtual std::vector<RowFactors> score_factors(const std::vector<double>& /*factors*/) const {
    return {};
  }
};

/// That of a layer, by its kind and the configuration. `layer_number` counts from 1.
std::unique_ptr<TokenMixer> get_mixer(const TransformerConfig& config,
                                      int64_t layer_number,
                                      bool sequence_first);

/// What the layer calls it: "attention", "linear_attention", "short_conv" or "mamba".
const char* mixer_name(MixerKind kind);

}  // namespace tapestry
