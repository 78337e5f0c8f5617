// The feed-forward block.
#pragma once

#include <memory>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/transformer/activation.h"
#include "parallel_core/transformer/recompute_policy.h"

namespace tapestry {

/// What a transformer layer needs of its feed-forward block. A mixture of experts is another such
/// block; it may add to the step's auxiliary loss.
class MlpBlock : public nn::Module, public nn::Callable<MlpBlock> {
 public:
  /// x [.., H] -> output [.., H] and the bias that the layer adds (undefined if none).
  virtual OutputAndBias forward(const Tensor& x, const LayerPass& pass) = 0;
  OutputAndBias forward(const Tensor& x) { return forward(x, LayerPass()); }
};

/// mapping (H -> F, or 2F for a gated activation) -> activation -> projection (F -> H). Each rank
/// of the tensor-parallel group has its share of the F channels: the same ones of gate and up.
class ParallelMLP final : public MlpBlock {
 public:
  /// `layer_number` counts from 1. ValueError if the ranks do not divide F.
  ParallelMLP(const TransformerConfig& config, int64_t layer_number, bool sequence_first);
  ParallelMLP(const AllConfig& config, int64_t layer_number)
      : ParallelMLP(config.model_config, layer_number, is_sequence_first(config)) {}
  /// Of width `ffn_hidden_size`, with logical tensors PREFIXw_up.weight and so on.
  ParallelMLP(const TransformerConfig& config,
              int64_t ffn_hidden_size,
              const std::string& prefix,
              bool sequence_first);

  std::string type_name() const override { return "ParallelMLP"; }
  std::string extra_repr() const override { return act_name_; }
  using MlpBlock::forward;
  OutputAndBias forward(const Tensor& x, const LayerPass& pass) override;

 private:
  bool report(const OutputAndBias& mapped, Tensor& active) const;

  const nn::Parameter& add_number(const char* name, const std::string& prefix, double start);

  std::string act_name_;
  bool is_gated_;
  Activation activation_;
  bool recomputes_;  // the activation, in backward, unless a pass keeps it
  bool sequence_first_;
  TensorParallelLayout layout_;
  int64_t layer_ = -1;  // whose block it is, from 0; -1: a part of one
  ColumnParallelLinear* mapping_;
  RowParallelLinear* projection_;
};

}  // namespace tapestry
