// The tokens that experts' routers decide about together.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/sequence_part.h"

namespace tapestry {

/// The routing group is one micro-batch of one data-parallel rank. Its tokens may be spread over
/// the rank's tensor- and context-parallel ranks, each of which has its own, distinct from all
/// others'. A token's number, row * seq_length + position, is the same however they are spread.
struct GroupTokens {
  ProcessGroup* group = nullptr;  ///< the ranks that have the tokens; null: this one has all
  int64_t total = 0;              ///< tokens of the whole group, rows * seq_length
  int64_t rows = 0;               ///< sequences of the micro-batch
  int64_t seq_length = 0;         ///< positions of each
  std::vector<int64_t> numbers;   ///< of this rank's tokens, in the order in which it has them

  /// This rank's tokens [begin, end) alone.
  GroupTokens slice(int64_t begin, int64_t end) const;
};

/// The tokens of hidden states [rows, own, H], or [own, rows, H] if `sequence_first`, flattened to
/// [rows * own, H], which have `part` of each sequence. `group` may be null where this rank has all
/// of them.
GroupTokens group_tokens(
    ProcessGroup* group, const SequencePart& part, int64_t rows, int64_t own, bool sequence_first);

}  // namespace tapestry
