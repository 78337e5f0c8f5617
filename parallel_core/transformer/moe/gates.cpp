#include "parallel_core/transformer/moe/gates.h"

#include <cmath>

#include "autograd/ops/activation.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/softmax.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

Tensor divided_by_sum(const Tensor& x, double epsilon) {
  return x / (sum(x, {-1}, /*keepdim=*/true) + epsilon);
}

GateRule::Scores scores_named(const std::string& function) {
  using Scores = GateRule::Scores;
  check<ValueError>(function == "softmax" || function == "sigmoid" || function == "sqrtsoftplus",
                    "moe_router_score_function '", function,
                    "' is not known; choose softmax, sigmoid or ", "sqrtsoftplus");
  return function == "softmax"   ? Scores::kSoftmax
         : function == "sigmoid" ? Scores::kSigmoid
                                 : Scores::kSqrtSoftplus;
}

// sqrt(ln(1 + e^x)). Far below 0 it is e^(x/2) to more digits than a number has; there the softplus
// underflows long before its root does, and the root's slope has no bound.
Tensor sqrt_softplus(const Tensor& x) {
  constexpr double kSmall = -40;
  return where(lt(x, kSmall), exp(clamp(x, -INFINITY, kSmall) * 0.5),
               sqrt(softplus(clamp(x, kSmall))));
}

}  // namespace

GateRule gate_rule(const MoEConfig& config) {
  const std::string& function = config.moe_router_score_function;
  const GateRule::Scores scores = scores_named(function);
  const bool is_softmax = scores == GateRule::Scores::kSoftmax;
  check<ValueError>(is_softmax || !config.moe_router_pre_softmax,
                    "moe_router_pre_softmax is about a softmax, but moe_router_score_function is ",
                    function);
  const bool normalises = config.norm_topk_prob.value_or(!config.moe_router_pre_softmax);
  const bool after_choice = is_softmax && !config.moe_router_pre_softmax && normalises;
  check<ValueError>(!after_choice || config.moe_router_topk > 1,
                    "moe_router_topk is 1, and a softmax over one value is 1 and has no gradient; "
                    "set moe_router_pre_softmax: True");
  return {.scores = scores,
          .after_choice = after_choice,
          .normalises = normalises,
          .norm_epsilon = config.moe_router_norm_epsilon,
          .scaling_factor = config.moe_router_topk_scaling_factor};
}

Tensor router_scores(const Tensor& logits, const GateRule& rule) {
  switch (rule.scores) {
    case GateRule::Scores::kSigmoid:
      return sigmoid(logits);
    case GateRule::Scores::kSqrtSoftplus:
      return sqrt_softplus(logits);
    default:
      return softmax(logits, -1);
  }
}

Tensor expert_gates(const Tensor& logits,
                    const Tensor& scores,
                    const Tensor& choice,
                    const GateRule& rule) {
  Tensor gates;
  if (rule.after_choice) {
    gates = softmax(gather(logits, 1, choice), -1);
  } else {
    gates = gather(scores, 1, choice);
    if (rule.normalises && choice.size(1) > 1) {
      gates = divided_by_sum(gates, rule.norm_epsilon);
    }
  }
  return rule.scaling_factor == 1 ? gates : gates * rule.scaling_factor;
}

Tensor balance_probabilities(const Tensor& scores, const GateRule& rule) {
  return rule.scores == GateRule::Scores::kSoftmax ? scores : divided_by_sum(scores, 1e-20);
}

}  // namespace tapestry
