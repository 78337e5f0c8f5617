// How the current rank takes part in context parallelism.
//
// A sequence is cut into two chunks for each rank, and rank r has chunks r and 2 size - 1 - r. With
// a causal mask the ranks then have the same work: the fewer keys the first of their chunks sees,
// the more the second. On a rank the two chunks follow one another. Source of the balanced order:
// Dubey et al. 2024, arXiv:2407.21783, section 3.3.2.
#pragma once

#include "parallel_core/comm/process_group.h"
#include "parallel_core/sequence_part.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

struct ContextParallelLayout {
  ProcessGroup* group = nullptr;  ///< null where `size` is 1 and no groups were made
  int rank = 0;
  int size = 1;

  /// Chunks of a whole sequence; it has a multiple of so many tokens.
  int64_t chunks() const { return size == 1 ? 1 : 2 * static_cast<int64_t>(size); }
  /// Which chunk of the sequence stands first (half 0) and second (half 1) on a rank.
  int64_t chunk_of(int owner, int half) const { return half == 0 ? owner : chunks() - 1 - owner; }
  /// Positions of this rank, which has `own` tokens of each sequence.
  SequencePart positions(int64_t own) const;
};

/// The layout of the current rank; a group of one where initialize_model_parallel was not called.
ContextParallelLayout context_parallel_layout();

/// Positions of `own` tokens of hidden states, which sequence parallelism divides once more.
SequencePart hidden_positions(const ContextParallelLayout& context,
                              const TensorParallelLayout& tensor,
                              int64_t own);

/// The rank's chunks of x along an axis, on which x has whole sequences. x itself in a group of
/// one. ValueError if the axis is not a multiple of chunks().
Tensor own_chunks(const Tensor& x, int64_t axis, const ContextParallelLayout& layout);

/// All ranks' chunks along an axis, in the order of the sequence. Each rank may use the result in
/// its own way: backward sums the gradients over the ranks and keeps the own chunks. x itself in a
/// group of one.
Tensor gather_chunks(const Tensor& x, int64_t axis, const ContextParallelLayout& layout);

/// The same for a result of which every rank makes the same use: backward takes the own chunks of
/// the gradient, which is the same on every rank.
Tensor gather_alike_chunks(const Tensor& x, int64_t axis, const ContextParallelLayout& layout);

}  // namespace tapestry
