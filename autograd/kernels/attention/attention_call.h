// Parts of a call, as attention.cpp hands them to the loops of isa/attention_forward.cpp and
// isa/attention_backward.cpp.
#pragma once

#include "autograd/kernels/attention/attention.h"

namespace tapestry::kernels {

/// Queries and keys per block: the operands of a product of two blocks stay in the first-level
/// cache.
inline constexpr int64_t kAttentionBlock = 64;

/// Blocks of queries that pass over the keys together, so that a block of keys is read, converted
/// and packed once for all of them. What is kept for them stays in the second-level cache.
inline constexpr int64_t kAttentionBlocks = 4;
inline constexpr int64_t kAttentionChunk = kAttentionBlocks * kAttentionBlock;

/// A part of the forward pass: neighbouring queries of one head. q_begin is a multiple of
/// kAttentionBlock, and there are at most kAttentionChunk queries.
struct AttentionRows {
  int64_t sample;
  int64_t head;
  int64_t q_begin;
  int64_t q_end;
  float* max_score = nullptr;  // gets the largest visible score; null: nobody asks
};

/// How a part of the backward pass keeps the sums of leaves apart (AttentionLeaves): `together`
/// neighbouring leaves at a time, so that their chunks fill a pass over the keys, and of those
/// before the sums of whole subtrees.
struct AttentionLeafSets {
  int64_t leaves = 0;
  int64_t chunk = 0;     // queries
  int64_t together = 1;  // leaves of a set

  int64_t sets() const { return leaves / together; }
  /// Arrays of dk and dv that are there at a time.
  int64_t sums() const {
    int64_t out = together;
    for (int64_t n = sets(); n > 1; n /= 2) {
      ++out;
    }
    return out;
  }
};
inline AttentionLeafSets attention_leaf_sets(const AttentionLeaves& leaves, int64_t q_len) {
  AttentionLeafSets sets{.leaves = leaves.count,
                         .chunk = q_len / 2 / (leaves.count > 0 ? leaves.count : 1)};
  // bfloat16 is multiplied in pairs of queries, which may not reach into the next chunk.
  while (sets.chunk % 2 == 0 && sets.together < sets.leaves &&
         2 * sets.together * sets.chunk < kAttentionChunk) {
    sets.together *= 2;
  }
  return sets;
}

/// A part of the backward pass: query heads of one group, some queries and some keys, which are cut
/// into blocks from the first of each on. dq is complete if all keys that the queries see are in
/// the part, dk and dv if all queries that see the keys, and all heads of the group, are.
struct AttentionPart {
  int64_t sample;
  int64_t group;
  int64_t head_begin;
  int64_t head_end;
  int64_t q_begin;
  int64_t q_end;
  int64_t k_begin;
  int64_t k_end;
  bool want_dq;
  bool want_dkv;
};

/// Channels as the working memory holds them: a whole number of the widest vectors.
inline constexpr int64_t attention_padded(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

/// Elements of compute type that one thread needs: `blocks` blocks of queries with their operands
/// and sums, and the matrices of scores, factors and packed probabilities. No operand has more
/// than a block of rows padded to 32 channels.
inline constexpr int64_t attention_scratch(int64_t channels,
                                           int64_t blocks,
                                           int64_t operands_per_block,
                                           int64_t operands,
                                           int64_t score_matrices) {
  constexpr int64_t kB = kAttentionBlock;
  return kB * ((channels + 31) / 32 * 32 * (blocks * operands_per_block + operands) +
               kB * score_matrices + 3 * (blocks + 1));
}
/// The channels of keys or of values, of which there are more.
inline constexpr int64_t attention_channels(const AttentionShape& s) {
  return s.head_dim > s.value_dim ? s.head_dim : s.value_dim;
}
inline constexpr int64_t attention_forward_scratch(const AttentionShape& s) {
  return attention_scratch(attention_channels(s), kAttentionBlocks, 2, 3, 3);
}
/// `sums`: arrays of dk and dv, more than one where leaves are kept apart.
inline constexpr int64_t attention_backward_scratch(const AttentionShape& s,
                                                    int64_t keys,
                                                    int64_t sums) {
  constexpr int64_t kB = kAttentionBlock;
  return attention_scratch(attention_channels(s), kAttentionBlocks, 5, 4, s.score_cap > 0 ? 7 : 6) +
         sums * (attention_padded(s.head_dim) + attention_padded(s.value_dim)) *
             ((keys + kB - 1) / kB * kB);
}

}  // namespace tapestry::kernels
