// The router of a mixture of experts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nn/module.h"
#include "nn/module_call.h"
#include "parallel_core/config/config.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"
#include "parallel_core/transformer/moe/balance_loss.h"
#include "parallel_core/transformer/moe/capacity.h"
#include "parallel_core/transformer/moe/expert_choice.h"
#include "parallel_core/transformer/moe/gates.h"
#include "parallel_core/transformer/moe/group_tokens.h"

namespace tapestry {

/// Where a rank's tokens go, and what the whole routing group does.
struct Routing {
  Tensor logits;  ///< [T, E] float32, part of the graph
  Tensor gates;   ///< [T, k] float32, first choice first, before any drop; part of the graph
  std::vector<int32_t> experts;  ///< [T * k], first choice first
  std::vector<uint8_t> kept;     ///< [T * k], 0: dropped; empty: nothing is
  /// Float32 scalar, part of the graph: this rank's part of the balance and z losses, with their
  /// coefficients. The parts of the group's ranks add up to the group's. Undefined if there is
  /// none.
  Tensor aux_loss;
  /// In exact mode the losses are sums over the group's sequences, so many (else 0), and this is
  /// aux_loss with each token's part rounded to a unit of kernels/exact_sums.h: exact.
  int64_t exact_sequences = 0;
  double exact_aux_loss = 0;

  // Of the whole group, the same on all of its ranks.
  std::vector<int64_t> tokens_per_expert;   ///< [E], before anything is dropped
  std::vector<int64_t> dropped_per_expert;  ///< [E]
  /// [E], what the balance losses count: tokens_per_expert or, with a selection bias, what the
  /// scores alone would choose; with moe_aux_loss_choice: scores of all experts, whatever groups
  /// there are.
  std::vector<int64_t> balance_counts;
  // How close the decisions were; 1e9 where there were none.
  double smallest_router_gap = 1e9;    ///< from the last chosen expert to the first refused one
  double smallest_group_gap = 1e9;     ///< the same of groups of experts
  double smallest_capacity_gap = 1e9;  ///< from the last kept gate to the first dropped one
};
inline void append_observed(TensorList& out, const Routing& routing) {
  out.insert(out.end(), {routing.logits, routing.gates, routing.aux_loss});
}

/// Assignments to each expert in a whole step, over all micro-batches and data-parallel ranks.
struct StepCounts {
  std::vector<int64_t> tokens_per_expert;  ///< sums of Routing::tokens_per_expert
  std::vector<int64_t> balance_counts;     ///< sums of Routing::balance_counts
};

/// logits = x weight^T in float32, plus `bias` [E] with moe_router_has_bias; each token goes to k
/// of E experts.
///
/// With moe_beside_dense x is first divided by its root mean square and multiplied by `scale` [H]
/// and H^-1/2, and each gate by the chosen expert's number of `per_expert_scale` [E] (Gemma 4).
///
/// The gates are a softmax over the k chosen logits; or scores (a softmax over all experts, or each
/// one's sigmoid or root of its softplus), divided by their sum over the k where norm_topk_prob
/// says so (and k > 1). The scaling factor comes last. While training, drops what exceeds the
/// experts' capacity, adds jitter, and gives the balance losses; in evaluation nothing is ever
/// dropped. With moe_router_force_load_balancing training takes random_logits() in place of the
/// logits.
class TopKRouter final : public nn::Module, public nn::Callable<TopKRouter> {
 public:
  /// `layer_number` counts from 1. ValueError, naming the key, for a configuration that cannot be
  /// routed.
  TopKRouter(const TransformerConfig& config, int64_t layer_number, bool sequence_first);
  TopKRouter(const AllConfig& config, int64_t layer_number)
      : TopKRouter(config.model_config, layer_number, is_sequence_first(config)) {}

  std::string type_name() const override { return "TopKRouter"; }
  std::string extra_repr() const override;

  /// x [T, H] of any floating dtype, with a row for each of tokens.numbers. A collective of
  /// tokens.group. ValueError if sizes do not fit, or numbers are not those of distinct tokens.
  Routing forward(const Tensor& x, const GroupTokens& tokens);

  /// What a step leaves to the next one: the selection bias moves towards the experts with too few
  /// tokens, and global_aux_loss takes the counts. To be called once after each step that changed
  /// the weights, on all ranks with the same counts.
  void finish_step(const StepCounts& counts);

 private:
  bool trains() const;
  bool has_loss(std::string_view type) const;
  // [E], then [rows * E] where seq_aux_loss needs it: what this rank's tokens chose.
  std::vector<int64_t> counts_of(const std::vector<int32_t>& experts,
                                 const GroupTokens& tokens,
                                 bool by_row) const;
  Tensor logits(const Tensor& x, const GroupTokens& tokens, bool training) const;
  Tensor aux_loss(const Tensor& logits,
                  const Tensor& scores,
                  const BalanceCounts& counts,
                  const std::vector<int64_t>& numbers) const;
  void exact_aux_loss(const Tensor& scores,
                      const BalanceCounts& counts,
                      const std::vector<int64_t>& numbers,
                      Routing& out) const;
  void drop(Routing& routing,
            const GroupTokens& tokens,
            const std::vector<int64_t>& tokens_of_ranks) const;

  int64_t layer_;  // from 0
  int64_t hidden_;
  ChoiceRule choice_;
  ChoiceRule balance_choice_;  // of what the balance losses count
  GateRule gates_;
  std::vector<MoEBalanceLoss> losses_;  // those with a coefficient
  int64_t num_groups_;                  // of the loss "device"
  double z_loss_coeff_;
  double jitter_;
  bool forces_balance_;
  double bias_rate_;
  std::optional<double> capacity_factor_;
  DropPolicy drop_policy_;
  nn::Parameter* weight_;
  nn::Parameter* bias_ = nullptr;
  double norm_epsilon_;
  nn::Parameter* scale_ = nullptr;
  nn::Parameter* per_expert_scale_ = nullptr;
  Tensor expert_bias_;      // [E] float32, undefined without
  Tensor previous_counts_;  // [E] int64, undefined without global_aux_loss
};

}  // namespace tapestry
