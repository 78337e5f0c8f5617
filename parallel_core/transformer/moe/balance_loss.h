// Losses that keep the load of experts even, and router logits small.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// What balance losses know of a routing group of T = rows * seq_length tokens, and of the step
/// before: numbers of assignments to E experts.
struct BalanceCounts {
  int64_t num_experts = 1;
  int64_t rows = 0;
  int64_t seq_length = 0;
  int64_t num_groups = 1;                ///< pools of experts of the loss "device"
  std::vector<int64_t> per_expert = {};  ///< [E]
  std::vector<int64_t> per_row = {};     ///< [rows * E]; only seq_aux_loss reads it
  std::vector<int64_t> previous = {};    ///< [E], of the previous step; empty or zeros: none yet
};

/// Every balance loss is linear in the tokens' probabilities p [T, E], which add up to 1 over the
/// experts; shares of assignments are constants:
///
///   aux_loss         c E sum_e f_e P_e: f_e = share of the group's assignments that went to e,
///                    P_e = mean of p over the group's tokens (Fedus et al. 2021, arXiv:2101.03961)
///   seq_aux_loss     the same for each sequence, and the mean of these (DeepSeek-AI 2024,
///                    arXiv:2412.19437, section 2.1.2)
///   global_aux_loss  as aux_loss, but f_e of the whole previous step, over all ranks; in the first
///                    step of the group (Qiu et al. 2025, arXiv:2501.11873)
///   device           c D sum_d f_d P_d of D pools of E / D neighbouring experts, over whose
///   experts
///                    f and P are summed
///
/// ValueError for an unknown type, or where D = num_groups does not divide E = num_experts.
void check_balance_loss(const MoEBalanceLoss& loss, int64_t num_experts, int64_t num_groups);

/// Adds the derivative of the group's loss by p of a token of each row to `weights` [rows * E].
/// ValueError as above.
void add_balance_weights(const MoEBalanceLoss& loss,
                         const BalanceCounts& counts,
                         std::span<double> weights);

/// The tokens' part of the losses: the sum of p[t, e] * weights[row of t, e], scalar, in p's dtype.
/// `numbers` [T] as in GroupTokens.
Tensor balance_loss(const Tensor& probabilities,
                    const std::vector<double>& weights,
                    const std::vector<int64_t>& numbers,
                    int64_t seq_length);

/// The same of each token, [T].
Tensor balance_loss_of_tokens(const Tensor& probabilities,
                              const std::vector<double>& weights,
                              const std::vector<int64_t>& numbers,
                              int64_t seq_length);

/// The tokens' part of coeff * mean over `total` tokens of logsumexp(logits)^2, scalar. Large
/// logits do not overflow. Source: Zoph et al. 2022, arXiv:2202.08906, equation 5.
Tensor router_z_loss(const Tensor& logits, double coeff, int64_t total);
/// The same of each token, [T].
Tensor router_z_loss_of_tokens(const Tensor& logits, double coeff, int64_t total);

}  // namespace tapestry
