// How a block of a product whose sum is cut into leaves (gemm_exact.h) looks to the kernels of a
// level: what is copied to which items, and what becomes of the sums of which items.
//
// Sums wait in slots, a tile each: slot 0 has the sum of a leaf that goes on, slot l + 1 that of
// 2^l leaves whose neighbours are to come. A slot is the kernel's own memory, or that of the
// product where the next block of the sum takes it up.
#pragma once

#include <cstdint>

namespace tapestry::kernels {

/// `count` elements of k, `step` apart, that are copied to neighbouring items from `item` on.
struct PackedRun {
  int64_t k;
  int64_t step;
  int64_t count;
  int64_t item;
};

inline constexpr int kOpenSlot = 0;
/// Enough for a tree of 2^16 leaves.
inline constexpr int kLeafSlots = 17;

/// Neighbouring items that are summed in one go.
struct LeafPiece {
  int64_t item;
  int64_t items;
  int64_t k;           // element of the first one, for rows that are read where they lie
  bool goes_on;        // from the sum in slot 0, rather than from zero
  bool ends;           // its leaf: otherwise the sum goes to slot 0
  bool last;           // that ends a leaf in this block
  bool to_c;           // of a tree: the sum of all leaves
  int adds;            // sums in slots 1 to `adds` are added to that of the leaf, which goes to
                       // slot adds + 1 or to C
  uint32_t from_kept;  // bit s: that of slot s has been kept since a block before
  bool to_kept;        // where the sum goes is kept for a block to come
};

/// One block of the sum.
struct LeafSums {
  const PackedRun* runs;
  int64_t run_count;
  const LeafPiece* pieces;
  int64_t piece_count;
  int64_t items;
  /// Whether whole tiles of A can be read where they lie.
  bool in_place;
  /// Slots that are kept: the tile of rows from i and columns from j on is at
  /// i row_size + j tile_rows(), dense. Null where nothing is.
  float* kept[kLeafSlots];
  int64_t row_size;  // columns of C in whole vectors
};

}  // namespace tapestry::kernels
