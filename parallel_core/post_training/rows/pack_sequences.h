// Sequences of a micro-batch in rows that share no attention.
#pragma once

#include <cstdint>
#include <span>

#include "parallel_core/data/data_source.h"
#include "parallel_core/post_training/rows/sequence_set.h"

namespace tapestry::post_training {

/// Which positions of rows count (Batch::loss_mask).
enum class CountedPositions : uint8_t {
  kCompletions,  ///< whose label belongs to a completion
  kSequences,    ///< that have a label: prompts, too
  /// All up to the length of the longest sequence, padding too, as trainers have it that average
  /// over padded rows. Padding then sees its row's sequence, and no padding.
  kPaddedRows,
  kPaddedRowsButLast,  ///< the same without the last position
};

struct RowRoom {
  int64_t seq_length = 0;  ///< most tokens of a row
  int64_t unit = 1;        ///< rows have a multiple of so many (ParallelModel::sequence_unit)
  int64_t pad_id = 0;
  /// False: a row for each sequence, all as long as the longest one needs.
  bool packing = true;
  /// Those of padded rows go without packing.
  CountedPositions counted = CountedPositions::kCompletions;
};

/// Whether padding counts.
inline bool counts_padding(const RowRoom& room) {
  return room.counted == CountedPositions::kPaddedRows ||
         room.counted == CountedPositions::kPaddedRowsButLast;
}

/// The sequences by their numbers, best fit (sft::pack_rows), in rows that are as short as their
/// fullest one allows. Each sequence is a document: positions begin with 0, attention sees no
/// other. Labels are the next tokens, loss_mask is 1 where the label belongs to a completion;
/// Batch::sequences says what lies where, with the numbers given. sample_ids are those of the
/// rows' first sequences. Where padding counts, it does so up to at least `longest` tokens: the
/// longest sequence may be in another micro-batch. Of no sequences a row of padding, of which
/// nothing counts. ValueError for a sequence longer than
/// seq_length.
data::Batch pack_sequences(const SequenceSet& set,
                           std::span<const int64_t> numbers,
                           const RowRoom& room,
                           int64_t longest = 0);

}  // namespace tapestry::post_training
