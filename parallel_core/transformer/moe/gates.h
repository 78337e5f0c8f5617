// What the experts' outputs are weighted with.
#pragma once

#include <cstdint>

#include "autograd/tensor/tensor.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// How logits become gates.
struct GateRule {
  enum class Scores : uint8_t {
    kSoftmax,       ///< over all experts
    kSigmoid,       ///< of each
    kSqrtSoftplus,  ///< sqrt(ln(1 + e^x)) of each, as in DeepSeek-V4
  };
  Scores scores = Scores::kSoftmax;
  bool after_choice = false;  ///< softmax over the k chosen logits alone; other fields do not count
  bool normalises = false;    ///< divide by the sum over the k, if k > 1
  double norm_epsilon = 1e-20;  ///< added to that sum, as scores may underflow
  double scaling_factor = 1;    ///< last, in any case
};

/// The rule of a configuration. norm_topk_prob is, where it is empty, false with
/// moe_router_pre_softmax and else true; a softmax that is not normalised comes before the choice.
/// ValueError, naming the key, for an unknown score function, another one than softmax with
/// pre_softmax, and a softmax after the choice of one expert: it is 1 and has no gradient.
GateRule gate_rule(const MoEConfig& config);

/// softmax(logits), or each logit's sigmoid or root of its softplus: [T, E].
Tensor router_scores(const Tensor& logits, const GateRule& rule);

/// Gates [T, k] of the experts in `choice` ([T, k], int32 or int64), by `logits` [T, E] or `scores`
/// = router_scores(logits), whichever the rule reads; the other may be undefined. Differentiable
/// any number of times.
Tensor expert_gates(const Tensor& logits,
                    const Tensor& scores,
                    const Tensor& choice,
                    const GateRule& rule);

/// Scores [T, E] that add up to 1 over the experts: those of a softmax as they are, others divided
/// by their sum + 1e-20.
Tensor balance_probabilities(const Tensor& scores, const GateRule& rule);

}  // namespace tapestry
