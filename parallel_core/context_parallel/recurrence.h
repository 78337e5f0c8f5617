// Layers whose state goes from token to token, over sequences that are divided over
// context-parallel ranks.
#pragma once

#include <cstdint>
#include <functional>

#include "autograd/ops/transformer/short_convolution.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"

namespace tapestry {

/// Tokens [begin, end) of a rank, which lie together in the sequence from position `first` on.
struct TokenRun {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first = 0;
};

/// What a recurrence makes of a run of tokens.
struct StateResult {
  Tensor out;    ///< [B, tokens, ..]
  Tensor state;  ///< behind the last token, of the shape of the states; undefined if not wanted
};

/// `recur(run, state, wants_state)` of all of the rank's tokens, joined along axis 1. State is the
/// one behind the token before the run: undefined at the beginning of a sequence; else it comes
/// from the rank that has that token, and its gradient goes back there. So ranks wait for each
/// other, in the order of the sequence, and in backward in the other one. In a group of one `recur`
/// is called once.
///
/// State are `state_shape`, float32. `anchor` is any tensor that wants a gradient if the results
/// do. ValueError if a rank has an odd number of tokens.
Tensor context_parallel_recurrence(
    const Tensor& anchor,
    int64_t tokens,
    const Shape& state_shape,
    const ContextParallelLayout& layout,
    const std::function<StateResult(const TokenRun&, const Tensor&, bool)>& recur);

/// short_convolution() of x [B, S/n, C], the rank's tokens; the inputs before each of its chunks
/// come from the ranks that have them. document_starts are those of whole sequences, [B or 1, S].
/// ValueError if a rank has an odd number of tokens.
Tensor context_parallel_convolution(const Tensor& x,
                                    const Tensor& weight,
                                    const ShortConvolutionOptions& options,
                                    const ContextParallelLayout& layout);

}  // namespace tapestry
