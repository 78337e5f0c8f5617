// The feed-forward block of a layer that is a mixture of experts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/precision.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"
#include "parallel_core/transformer/mlp.h"
#include "parallel_core/transformer/moe/experts.h"
#include "parallel_core/transformer/moe/moe_counts.h"
#include "parallel_core/transformer/moe/router.h"

namespace tapestry {

class SharedExpertGate;

/// y = sum over the token's kept experts e, ascending, of gate_e expert_e(x) + shared(x); with
/// moe_apply_probs_on_input of expert_e(gate_e x).
///
/// Every rank routes tokens of its own: its piece of the sequence with sequence parallelism, else a
/// share of the tokens that its tensor-parallel group has in common. The shared expert, if there is
/// one, sees every token: a ParallelMLP, whose output is multiplied by sigmoid(x . g) in float32
/// where use_shared_expert_gating says so. With moe_shared_expert_overlap it computes while the
/// tokens travel to their experts. With moe_pad_expert_input_to_capacity each rank sends as many
/// rows to every expert as this may keep, some of them zeros, so that all messages have one size;
/// nothing else changes. The balance losses are injected into the gradient (aux_loss.h).
///
/// In exact mode (autograd/kernels/machine/exact.h) rows travel sorted by expert and by the leaf of
/// their token (token_leaves.h), whose shares are the terms of the experts' gradients; what ranks
/// sum over slices is float32; and balance losses are sums over sequences.
class MoELayer final : public MlpBlock {
 public:
  /// `layer_number` counts from 1. ValueError, naming the key, for a configuration that cannot be
  /// built.
  MoELayer(const TransformerConfig& config, int64_t layer_number, bool sequence_first);
  MoELayer(const AllConfig& config, int64_t layer_number)
      : MoELayer(config.model_config, layer_number, is_sequence_first(config)) {}

  std::string type_name() const override { return "MoELayer"; }
  using MlpBlock::forward;
  /// x [B, S, H] or [S, B, H], as all hidden states; no bias is left to add. While training, the
  /// counts of the pass are added to counts().
  OutputAndBias forward(const Tensor& x, const LayerPass& pass) override;

  /// The same where the router reads another tensor of that shape, with moe_beside_dense.
  OutputAndBias forward_routed_by(const Tensor& x,
                                  const Tensor& router_input,
                                  const LayerPass& pass);

  int64_t layer() const { return layer_; }  ///< from 0
  TopKRouter& router() { return *router_; }
  /// Of this rank's passes since they were last reset.
  MoECounts& counts() { return counts_; }

 private:
  struct OwnTokens;
  OwnTokens own_tokens(const Tensor& x) const;
  OutputAndBias through(const OwnTokens& own,
                        const Routing& routing,
                        const Tensor& x,
                        const LayerPass& pass);
  Tensor through_experts(const OwnTokens& own,
                         const Routing& routing,
                         const Tensor& x,
                         const LayerPass& pass,
                         Tensor& shared);
  Tensor through_shared_expert(const Tensor& x, const LayerPass& pass);
  void report(const Routing& routing, const OwnTokens& tokens, const Tensor& x) const;

  int64_t layer_;  // from 0
  bool sequence_first_;
  int64_t hidden_;
  int64_t num_experts_;
  int64_t topk_;
  bool overlaps_;
  bool gates_inputs_;
  std::optional<double> padded_to_;  // the capacity factor, if every expert is filled up to that
  Precision precision_;
  TensorParallelLayout layout_;
  ContextParallelLayout context_layout_;
  ProcessGroup* routing_group_;  // null: one rank
  TopKRouter* router_;
  Experts* experts_;
  ParallelMLP* shared_expert_ = nullptr;
  SharedExpertGate* shared_expert_gate_ = nullptr;
  MoECounts counts_;
};

}  // namespace tapestry
