// Which experts each token goes to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// The smallest distance of a decision where there was none.
inline constexpr double kNoGap = 1e9;

/// How k of E experts are chosen.
struct ChoiceRule {
  enum class Method : uint8_t {
    kGreedy,              ///< the best of all experts
    kGroupLimitedGreedy,  ///< those of the groups with the largest maxima; DeepSeek-AI 2024,
                          ///< arXiv:2405.04434, section 2.1.2
    kNoauxTc,             ///< those of the groups whose two best add up to most; DeepSeek-AI 2024,
                          ///< arXiv:2412.19437, section 2.1.2
  };
  int64_t num_experts = 1;
  int64_t topk = 1;
  Method method = Method::kGreedy;
  int64_t num_groups = 1;  ///< of E / num_groups neighbouring experts each
  int64_t group_topk = 1;  ///< groups that a token may choose from
};

/// The rule of a resolved configuration. ValueError, naming the key, unless 1 <= k <= E, groups are
/// given exactly where the method has them and divide the experts, at least two to a group for
/// noaux_tc, and the groups that are left have k experts.
ChoiceRule choice_rule(const MoEConfig& config);

struct ExpertChoice {
  std::vector<int32_t> experts;  ///< [T * k], first choice first
  // Distances between values, over all tokens; kNoGap where nothing was decided. What is not a
  // number is left out.
  double smallest_gap = kNoGap;        ///< from the last chosen expert to the first refused one
  double smallest_group_gap = kNoGap;  ///< the same of the groups' scores
  double smallest_order_gap = kNoGap;  ///< from one chosen expert to the next
};

/// The k best experts of each token by `values` [T, E]. Of equals the one with the lower index is
/// better, be they experts or groups; NaN is worse than any number. Exactly group_topk groups are
/// allowed; experts of the others are never chosen. ValueError unless values are whole rows.
ExpertChoice choose_experts(std::span<const float> values, const ChoiceRule& rule);

}  // namespace tapestry
