// Attention.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "autograd/ops/random.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

struct AttentionOptions {
  /// Query i sees keys j <= i.
  bool causal = false;
  /// Query i sees keys j >= i - window_left, so a causal window of L sees L + 1 keys.
  std::optional<int64_t> window_left = std::nullopt;
  /// Factor of the scores; 1 / sqrt(D) by default.
  std::optional<double> scale = std::nullopt;
  /// Above 0: scaled scores s become score_cap tanh(s / score_cap), before bias and mask, so that
  /// none lies outside [-score_cap, score_cap]. 0: none. Source: Gemma 2, arXiv:2408.00118,
  /// section 2.
  double score_cap = 0;
  /// bool, broadcasts to [B,H,S,T]; true: may look. Undefined: no mask. It is read as it is, never
  /// expanded: [B,1,1,T] hides padded keys, and blocks of keys that it hides whole cost nothing.
  Tensor mask = {};
  /// int32 [B or 1, N], N >= q_offset + S: where the document of the token at each position begins.
  /// No query sees a key before that, and such scores cost nothing. Along a row the numbers do not
  /// decrease, and none lies behind its position. Only with `causal`. Undefined: one document. See
  /// document_starts().
  Tensor document_starts = {};
  /// ALiBi: one slope for each of the H heads, of which slope (j - i) is added to the scaled scores
  /// of query i and key j. Empty: nothing is added. Source: Press et al. 2022, arXiv:2108.12409.
  std::vector<double> alibi_slopes = {};
  /// [H], floating; differentiable: a logit of each head that takes part in the softmax of every
  /// query but multiplies no value, p_j = e^s_j / (sum_j e^s_j + e^sink). With p_sink the sink's
  /// own share and delta_i = dout_i . out_i, dsink = - the sum of p_sink delta over samples and
  /// queries. Undefined: none. Source: GPT-OSS (openai/gpt-oss, 2025); the idea: Xiao et al. 2023,
  /// arXiv:2309.17453.
  Tensor sinks = {};
  /// [H], float32 and contiguous: is raised to the largest visible score of each head, of the
  /// scores as they enter the softmax: scaled, capped and with their bias, without the sink. So it
  /// is to hold -inf, or the maxima of earlier calls, which it then has a part in; a head that sees
  /// nothing leaves it as it is. Backward does not touch it. Undefined: nothing is measured. The
  /// fused form has the maxima anyway and passes over nothing more.
  Tensor max_logits = {};
  /// Position of the first query among the keys: i above counts from here.
  int64_t q_offset = 0;

  /// Probability with which each attention weight becomes 0; the others are divided by
  /// 1 - dropout_p.
  double dropout_p = 0;
  /// Of the numbers for dropout. The weight [b,h,i,j] uses the counter ((b H + h) S' + i) T + j
  /// with i counted from q_offset and S' = q_offset + S; an offset of the key is mixed into its
  /// stream.
  RandomSource dropout_source = {};
  /// If its shape is given: where the weights [B,H,S,T] lie in those of all ranks and
  /// micro-batches, which the counters then follow. The start of axis 2 is q_offset, that of axis 3
  /// is 0, and sample_axis is 0 or -1. See LogicalPlace.
  LogicalPlace dropout_place = {};
};

/// For AttentionOptions, [B, length]: a document of row b begins at each of the positions
/// `starts[b]`, which ascend, and one at 0. ValueError if they do not ascend, or leave the row.
Tensor document_starts(std::span<const std::vector<int64_t>> starts, int64_t length);

/// The slopes of `heads` heads: 2^(-8 h / heads), h = 1 .. heads, for a power of two; for other
/// numbers those of the next lower power n, then every second one of 2n. ValueError below 1.
std::vector<double> alibi_slopes(int64_t heads);

/// out = dropout(softmax(cap(scale q k^T) + bias + mask)) v, without the S x T matrix in memory.
///
/// q [B,H,S,D]; k [B,G,T,D]; v [B,G,T,E], G divides H and query head h uses group h / (H / G) (no
/// copies). E may differ from D, as multi-head latent attention has it; neither is padded in
/// memory. One floating dtype (TypeError), sums in float32 (float64 for float64). Any strides; a
/// last axis that is not dense is copied first. out [B,H,S,E] lies in memory as [B,S,H,E], so that
/// joining the heads, out.permute({0, 2, 1, 3}).reshape({B, S, H * E}), is a view. A row whose keys
/// are all masked gives 0. Saves q, k, v, out and one number per row. ValueError if shapes
/// disagree, if the mask does not broadcast, if window_left, q_offset or score_cap is negative,
/// dropout_p lies outside [0, 1), dropout_place does not fit, document_starts are not as they have
/// to be, or there are not as many slopes as heads, or with a scale of 0, or sinks are not [H], or
/// max_logits are not [H] and contiguous; TypeError if the mask is not bool, sinks are not
/// floating, max_logits not float32 or document_starts not int32. Source: Dao et al. 2022,
/// arXiv:2205.14135.
///
/// In exact mode (kernels/machine/exact.h) the gradients of k and v are a tree over the leaves of
/// queries that exact_tokens() says, if it speaks of so many tokens, and that of sinks is added to
/// their exact main_grad, a term for each sample, head and query.
Tensor scaled_dot_product_attention(const Tensor& q,
                                    const Tensor& k,
                                    const Tensor& v,
                                    const AttentionOptions& options = {});

/// The same as a chain of ops, each with its own backward, which keep the S x T matrices: scores =
/// q k^T; scale, cap, mask, sinks and softmax in softmax_dtype; dropout; weights times v. Scores
/// and weights are in the inputs' dtype: 16-bit inputs have them rounded where the fused form does
/// not.
///
/// softmax_dtype: float32 for 16-bit inputs, else the inputs' dtype, unless it is given. Dropout
/// takes the same numbers as the fused form. max_logits are those of the scores as this form has
/// them, with their rounding. Errors as above; TypeError if softmax_dtype is not
/// floating; RuntimeError in exact mode, unless the inputs are float64.
Tensor composed_attention(const Tensor& q,
                          const Tensor& k,
                          const Tensor& v,
                          const AttentionOptions& options = {},
                          std::optional<DType> softmax_dtype = std::nullopt);

}  // namespace tapestry
