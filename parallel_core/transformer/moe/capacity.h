// Which assignments of tokens to experts are kept where experts take a limited number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/transformer/moe/group_tokens.h"

namespace tapestry {

/// min(tokens, ceil(tokens * topk / num_experts * factor)), in double precision and in this order.
/// ValueError unless factor is above 0.
int64_t expert_capacity(int64_t tokens, int64_t topk, int64_t num_experts, double factor);

/// In which order an expert accepts tokens (moe_token_drop_policy).
enum class DropPolicy : uint8_t {
  kProbs,     ///< larger gates first
  kPosition,  ///< lower numbers first
  kChoice,    ///< those whose first choice it is, then second choices, ...; lower numbers first
};
/// ValueError for a name that is none of probs, position and choice.
DropPolicy drop_policy(const std::string& name);

/// Tokens and where they go. Expert `j` of a token is its choice j.
struct Assignments {
  int64_t topk = 0;
  std::vector<int64_t> numbers;  ///< [T], see GroupTokens
  std::vector<int32_t> experts;  ///< [T * k]
  std::vector<float> gates;      ///< [T * k]
};

struct KeptAssignments {
  std::vector<uint8_t> kept;                ///< [T * k], 0: dropped
  std::vector<int64_t> dropped_per_expert;  ///< [E]
  /// kProbs: the smallest distance of an expert's last kept gate from its first dropped one.
  double smallest_gap = 1e9;
};

/// Keeps up to `capacity` assignments of each of E experts, in the order of the policy; of equal
/// gates those with the lower number come first, and NaN last. `all` has every token of the routing
/// group, in any order. ValueError unless the numbers are 0 .. T - 1, each once.
KeptAssignments keep_assignments(const Assignments& all,
                                 int64_t num_experts,
                                 int64_t capacity,
                                 DropPolicy policy);

/// The assignments of the group's ranks one after the other, of which rank r has tokens_of_ranks[r]
/// tokens. A collective of the group.
Assignments gather_assignments(const Assignments& own,
                               ProcessGroup& group,
                               const std::vector<int64_t>& tokens_of_ranks);

}  // namespace tapestry
