// What a head says of single tokens: log-probabilities and their like, for losses that are more
// than a mean of cross entropies.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

struct LinearTokenScoresOptions {
  /// Rows with this label are left out of all work: their scores are 0, they have no gradient.
  int64_t ignore_index = -100;
  /// Rows of logits that exist at a time. At least 1.
  int64_t chunk_rows = 512;
  /// The weight rounded to hidden's dtype, where the caller has it; see linear().
  Tensor rounded = {};
  /// The logits are soft_cap(hidden weight^T, logit_scale, logit_cap). A cap of 0: none.
  double logit_scale = 1;
  double logit_cap = 0;
  /// What the logits are divided by then. Above 0.
  double temperature = 1;
};

/// Of x, the logits of a row, and p = softmax(x / temperature).
struct RowTokenScores {
  Tensor log_probs;    ///< ln p[label]
  Tensor entropy;      ///< -sum p ln p
  Tensor logit_means;  ///< the mean of x; without a gradient, as what follows
  Tensor likeliest;    ///< 1 where x[label] is the first of the largest, else 0
  Tensor square_sums;  ///< ln sum p^2
};

/// Of hidden [..., H], weight [V, H], labels [...] int32 or int64, without ever holding the logits;
/// all scores [...] are float32 (float64 for float64 hidden). Dtypes and rounding as in linear();
/// the logits have hidden's dtype, their sums are carried in float64.
///
/// Saves hidden, weight and a few numbers per row; backward makes the logits of a chunk again. It
/// writes the weight's gradient into main_grad where it can, summed over chunks in float32
/// (float64). ValueError if shapes disagree, or for an option outside its range; TypeError for
/// other dtypes; IndexError for a label that is neither ignored nor in [0, V).
RowTokenScores linear_token_scores(const Tensor& hidden,
                                   const Tensor& weight,
                                   const Tensor& labels,
                                   const LinearTokenScoresOptions& options = {});

}  // namespace tapestry
