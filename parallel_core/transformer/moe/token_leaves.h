// Which tokens of a rank belong to one leaf of the experts' sums in exact mode.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel_core/transformer/moe/group_tokens.h"

namespace tapestry {

/// Into how many equal runs a sequence is cut. A rank's tokens are whole ones where tensor- and
/// context-parallel ranks together are no more.
inline constexpr int64_t kTokenChunks = 16;

/// The tokens of one sequence's run have one leaf.
struct TokenLeaves {
  int64_t count = 0;              ///< of this rank; 0: each token is a leaf of its own
  std::vector<int32_t> of_token;  ///< [T], below count
};

/// Of this rank's tokens. Sequences that have no kTokenChunks equal runs have no leaves, on no
/// rank. ValueError if the rank has a part of a run.
TokenLeaves token_leaves(const GroupTokens& tokens);

/// Kinds to sort assignments by: expert * leaves.count + the leaf of the token; experts [T * topk].
std::vector<int32_t> experts_and_leaves(std::span<const int32_t> experts,
                                        int64_t topk,
                                        const TokenLeaves& leaves);

}  // namespace tapestry
