// Attention over sequences that are divided over context-parallel ranks.
#pragma once

#include <optional>

#include "autograd/ops/transformer/attention.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"

namespace tapestry {

/// scaled_dot_product_attention() of the rank's queries and the keys and values of all ranks.
///
/// q [B,H,S/n,D]; k [B,G,S/n,D]; v [B,G,S/n,E], of each rank its chunks; out [B,H,S/n,E], and what
/// the same queries get on one rank, to the bit for the same shapes of heads. Options are those of
/// whole sequences, but for the mask, whose queries are the rank's, [B or 1, 1, S/n or 1, S]
/// (ValueError); so document_starts are [B or 1, S] (ValueError), sinks are the same on all ranks,
/// and a place of dropout is that of the whole weights [B,H,S,S] (ValueError without one), its
/// source a fixed key; q_offset is not used.
///
/// Keys and values are gathered for a few groups of heads at a time, while the groups before them
/// are computed, and again in backward: kept are only the rank's own q, k, v, out and one number
/// per row. The gradients of keys and values are summed in float32, over the rank's queries and
/// then, in the order of ranks, over ranks; in exact mode all of it is the tree that one rank has.
/// A rank communicates per call B G S (D + E) elements of the inputs' dtype in either pass, and as
/// many of float32 in backward. Source: Dubey et al. 2024, arXiv:2407.21783, section 3.3.2.
///
/// max_logits [H] are raised to the maxima over the rank's own queries.
///
/// The gradient of sinks is that of the rank's own queries, as the gradient of any parameter that
/// the ranks share is: the sum over the ranks is the whole one. It is not communicated here.
Tensor context_parallel_attention(const Tensor& q,
                                  const Tensor& k,
                                  const Tensor& v,
                                  const AttentionOptions& options,
                                  const ContextParallelLayout& layout);

/// The same by composed_attention(), of keys and values that are gathered whole and kept.
Tensor composed_context_parallel_attention(const Tensor& q,
                                           const Tensor& k,
                                           const Tensor& v,
                                           const AttentionOptions& options,
                                           const ContextParallelLayout& layout,
                                           std::optional<DType> softmax_dtype = std::nullopt);

}  // namespace tapestry
