// Layers behind the model's own that predict further tokens while it is trained.
//
// Source: DeepSeek-V3, arXiv:2412.19437, section 2.2; names and order of the two halves as in the
// files of its models and in MindFormers.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/transformer/norm.h"
#include "parallel_core/transformer/transformer.h"

namespace tapestry {

/// One depth k: position i, whose hidden state so far is h_i, sees the embedding e_i of token i + k
/// and makes of both what predicts token i + k + 1:
///
///   u = eh_proj [enorm(e) | hnorm(h)],  out = final_norm(transformer_layer(u)).
///
/// eh_proj is [H, 2H] without bias, on every tensor-parallel rank. The layer is of the kind of the
/// model's last one, and attends like it: to positions up to i, rotated as those of the model.
class PredictionLayer final : public nn::Module, public nn::Callable<PredictionLayer> {
 public:
  /// `layer` counts from 0, with the model's own layers before it.
  PredictionLayer(const TransformerConfig& config, int64_t layer, bool sequence_first);
  PredictionLayer(const AllConfig& config, int64_t layer)
      : PredictionLayer(config.model_config, layer, is_sequence_first(config)) {}

  std::string type_name() const override { return "MultiTokenPredictionLayer"; }
  /// hidden and embedded as hidden states of the model, [B, S, H] or [S, B, H], with sequence
  /// parallelism the rank's piece of them; so is the result, in the activations' dtype.
  Tensor forward(const Tensor& hidden, const Tensor& embedded, const AttentionContext& context);

 private:
  int64_t layer_;
  int64_t batch_axis_;
  Precision precision_;
  TensorParallelLayout layout_;
  ParallelNorm* enorm_;
  ParallelNorm* hnorm_;
  ColumnParallelLinear* eh_proj_;
  ParallelTransformerLayer* transformer_layer_;
  ParallelNorm* final_norm_;
};

/// All depths; mtp_num_layers of them.
class MultiTokenPrediction final : public nn::Module {
 public:
  MultiTokenPrediction(const TransformerConfig& config, bool sequence_first);
  explicit MultiTokenPrediction(const AllConfig& config)
      : MultiTokenPrediction(config.model_config, is_sequence_first(config)) {}

  std::string type_name() const override { return "MultiTokenPrediction"; }
  /// Of depth 1 and so on, from 0.
  PredictionLayer& layer(int64_t index) { return *layers_.at(static_cast<size_t>(index)); }

 private:
  std::vector<PredictionLayer*> layers_;
};

}  // namespace tapestry
