// What attention.cpp hands to the loops of isa/attention.cpp.
#pragma once

#include "autograd/kernels/attention.h"

namespace tapestry::kernels {

/// The arguments of one call; the totals of the shape are filled in. Outputs of the pass that is
/// not called are null.
struct AttentionCall {
  AttentionShape shape;
  const void* q;
  const void* k;
  const void* v;
  const bool* mask;
  const void* out;
  const void* dout;
  void* lse;
  void* forward_out;
  void* dq;
  void* dk;
  void* dv;
  AttentionStrides q_strides;
  AttentionStrides k_strides;
  AttentionStrides v_strides;
  AttentionStrides out_strides;
  AttentionStrides dout_strides;
  AttentionStrides dq_strides;
  AttentionStrides dk_strides;
  AttentionStrides dv_strides;
};

/// A part of the backward pass: query heads of one group, blocks of queries and of keys. dq is
/// complete if all keys are in the part, dk and dv if all queries and heads of the group are.
struct AttentionPart {
  int64_t sample;
  int64_t group;
  int64_t head_begin;
  int64_t head_end;
  int64_t q_begin;  // multiples of kAttentionBlock, or the end
  int64_t q_end;
  int64_t k_begin;
  int64_t k_end;
  bool want_dq;
  bool want_dkv;
};

/// Queries and keys per block.
inline constexpr int64_t kAttentionBlock = 64;

/// Channels as the working memory holds them: a whole number of the widest tiles.
inline constexpr int64_t attention_padded(int64_t head_dim) { return (head_dim + 31) / 32 * 32; }

/// Elements of compute type that one thread needs.
inline constexpr int64_t attention_forward_scratch(int64_t head_dim) {
  constexpr int64_t kB = kAttentionBlock;
  return kB * (4 * attention_padded(head_dim) + 2 * kB + 8);
}
inline constexpr int64_t attention_backward_scratch(int64_t head_dim, int64_t keys) {
  constexpr int64_t kB = kAttentionBlock;
  const int64_t padded_keys = (keys + kB - 1) / kB * kB;
  return attention_padded(head_dim) * (8 * kB + 2 * padded_keys) + kB * (3 * kB + 8);
}

}  // namespace tapestry::kernels
