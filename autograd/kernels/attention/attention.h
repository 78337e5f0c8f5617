// Scaled dot-product attention in blocks with an online softmax: the S x T
// matrix of scores is never in memory. Source: Dao et al. 2022,
// arXiv:2205.14135; the order of loops is that of Dao 2023, arXiv:2307.08691.
//
// q [B,H,S,D]; k [B,G,T,D]; v [B,G,T,E] and out [B,H,S,E], G divides H and query head h looks at
// group h / (H / G), so K and V are never repeated. Elements along D and E are contiguous, the
// other strides are free (in elements). One floating dtype for all; for float16
// and bfloat16 sums and softmax are in float32, and outputs are rounded once.
// At the levels from kAvx512Bf16 on, bfloat16 is multiplied as such (in exact mode where
// prefers_bfloat16_pairs() says so, see machine/bfloat16_pairs.h): there the
// probabilities and the gradients of the scores are also rounded to it, as
// factors of products, and factors below 2^-126 count as 0. Results do not
// depend on the number of threads. Inside a OneOrderScope (machine/one_order.h) causal attention
// without mask and dropout has the bits that cached_attention.h gives each query.
//
// A query's result has the same bits whatever other queries are computed with it, and at every
// level with fused multiply-adds (bfloat16 in pairs has its own): its sums run over the keys in
// order, in blocks of kAttentionBlock from key 0 on, and queries are the lanes. So does its dq. Of
// dk and dv AttentionLeaves says it.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// Query i of the call has position i + q_offset, key j has position j. Query i
/// sees key j if
///   (not causal or j <= i + q_offset) and (window_left < 0 or j >= i +
///   q_offset - window_left)
/// and the mask, where there is one, is true.
///
/// Dropout keeps the probability of (sample b, head h, query i, key j) and
/// divides it by 1 - dropout_p, or makes it 0; the kept ones are those of
/// bernoulli(philox.h) with that probability, seed rng_seed, and
///   stream rng_stream,        index ((B_ * H_ + H') * S_ + S') * T_ + j   if
///   sample_streams is null stream sample_streams[b], index (          H'  * S_
///   + S') * T_ + j   otherwise
/// with B_ = sample_offset + b, H' = head_offset + h, H_ = total_heads, S' =
/// q_offset + i, S_ = total_rows, T_ = total_cols (each total: 0 stands for the
/// size in the call). So a mask is a function of places in the logical tensor
/// alone, however it is cut among ranks, blocks and threads.
struct AttentionShape {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t groups = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t head_dim = 0;   // D
  int64_t value_dim = 0;  // E; 0: as head_dim
  bool causal = false;
  int64_t window_left = -1;  // below 0: no window
  int64_t q_offset = 0;
  double scale = 1.0;  // of the scores, usually 1 / sqrt(D)
  /// Above 0: scaled scores s become score_cap tanh(s / score_cap), before bias and mask. Source:
  /// Gemma 2, arXiv:2408.00118, section 2.
  double score_cap = 0.0;

  double dropout_p = 0.0;  // 0 <= p < 1
  uint64_t rng_seed = 0;
  uint64_t rng_stream = 0;
  const uint64_t* sample_streams = nullptr;  // [batch]
  int64_t sample_offset = 0;
  int64_t head_offset = 0;
  int64_t total_heads = 0;
  int64_t total_rows = 0;
  int64_t total_cols = 0;
};

/// Elements from one sample, head (or group) and row to the next.
struct AttentionStrides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
};

/// An array [B,H,S,D] or [B,G,T,D], or with E channels, that a call reads, or writes.
struct AttentionInput {
  const void* data = nullptr;
  AttentionStrides strides;
};
struct AttentionOutput {
  void* data = nullptr;
  AttentionStrides strides;
};

/// Which keys may be looked at: [B,H,S,T], true where a query may, with
/// neighbouring keys side by side. A stride of 0 repeats: with one along heads
/// and rows, this is a mask of padded keys [B,T]. Blocks of keys that it hides
/// whole are left out. Null: all.
struct AttentionMask {
  const bool* data = nullptr;
  AttentionStrides strides;
};

/// Documents that share a row of tokens and may not see each other: query i of a sample sees no key
/// before start[sample * batch + i + q_offset], the first one of its document. Along a row the
/// starts do not decrease, and none lies behind its own position. Only with `causal` and a q_offset
/// of at least 0. What documents hide is not computed. Null: all is one document.
struct AttentionDocuments {
  const int32_t* start = nullptr;
  int64_t batch = 0;
};

/// Cuts the sums over queries, dk and dv, in the way of exact mode (machine/exact.h): the queries
/// of the call are 2 count equal chunks, and a leaf is chunks i and 2 count - 1 - i. A leaf's sum
/// is one chain: for each head of the group in order its earlier chunk, then its later one. The
/// leaves are added in float32 as a balanced tree of neighbours. `count`, a power of two of at most
/// kSumLeaves, divides half of q_len, unless it is 1. With 0 all is one chain in an order that the
/// call chooses.
///
/// The second half of the queries has positions that are late_shift higher than otherwise: those
/// of a context-parallel rank, whose two pieces of the sequence are not neighbours. Documents have
/// starts for all of them.
struct AttentionLeaves {
  int64_t count = 0;
  int64_t late_shift = 0;
};

/// out [B,H,S,E] = dropout(softmax(cap(scale q k^T) + bias + mask)) v; lse [B,H,S],
/// contiguous, float32 (float64 where dtype is float64) = logsumexp of the
/// visible scores. A query without a visible key gives out 0 and lse -inf. out
/// may overlap no input.
///
/// `sinks`, one of each head where there are any, are logits that take part in the softmax but
/// multiply no value: p_j = e^s_j / (sum_j e^s_j + e^sink), and the lse has the sink in it. So a
/// query without a visible key gives lse sink. One of -inf is none. Source: GPT-OSS
/// (openai/gpt-oss, 2025); the idea: Xiao et al. 2023, arXiv:2309.17453.
///
/// The bias, where there are `slopes`, one of each head, is slopes[head] (j - i - q_offset) for
/// query i and key j; scale must not be 0 then, unless there is a score_cap.
///
/// `max_scores`, where it is not null, is raised to the largest visible score of each head: of the
/// scores as they enter the softmax, scaled, capped and with their bias, without the sink. Where
/// nothing is visible it stays as it is. NaN counts as nothing.
struct AttentionForward {
  DType dtype = kFloat32;
  AttentionShape shape;
  AttentionInput q;
  AttentionInput k;
  AttentionInput v;
  AttentionMask mask = {};
  AttentionDocuments documents = {};
  const double* slopes = nullptr;
  const double* sinks = nullptr;
  AttentionOutput out;
  void* lse = nullptr;
  float* max_scores = nullptr;  // [heads]
};
void attention(const AttentionForward& wanted);

/// Writes dq, dk and dv, all three, from dout and what `attention` returned;
/// the probabilities are computed again. With P the probabilities, M the
/// dropout factors (0 or 1 / (1 - p)) and delta_i = dout_i . out_i:
///   dv = (P M)^T dout, dS = P (M (dout v^T) - delta), dq = scale dS k, dk =
///   scale dS^T q.
/// With a score_cap, dS is multiplied by the derivative of the cap, 1 - (s' / score_cap)^2 for the
/// capped scores s'.
/// With sinks, dsinks[head] -= the sum of e^(sink - lse_i) delta_i over samples and queries: the
/// sink's probability, whose value is 0; delta has the dropout of the other terms in it.
///
/// dk and dv sum over the query heads of their group. The outputs may overlap
/// no input.
struct AttentionBackward {
  DType dtype = kFloat32;
  AttentionShape shape;
  AttentionInput q;
  AttentionInput k;
  AttentionInput v;
  AttentionMask mask = {};
  AttentionDocuments documents = {};
  const double* slopes = nullptr;
  const double* sinks = nullptr;
  AttentionInput out;
  AttentionInput dout;
  const void* lse = nullptr;
  AttentionOutput dq;
  AttentionOutput dk;
  AttentionOutput dv;
  /// dk and dv are float32 (float64 where dtype is float64) and are added to,
  /// which is how the queries of several calls share keys without rounding in
  /// between.
  bool add_dkv = false;
  bool scale_dk = true;  // false: dk is without its factor scale, for sums that go on elsewhere
  AttentionLeaves leaves = {};
  double* dsinks = nullptr;  // [heads], added to; needed if there are sinks
  /// dsinks is in units of exact_sums.h, and each query's term is rounded to one.
  bool exact_dsinks = false;
  void* delta = nullptr;  // [B,H,S] as lse; attention_backward() itself makes room where needed
};
void attention_backward(const AttentionBackward& wanted);

}  // namespace tapestry::kernels
