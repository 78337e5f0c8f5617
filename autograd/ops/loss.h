// Losses.
//
// A reduced loss is a scalar. Over nothing (no rows, or all of them ignored) a sum is 0 and a mean
// is NaN.
#pragma once

#include "autograd/kernels/machine/exact.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

enum class Reduction { kNone, kSum, kMean };
/// Losses of any shape as they are, their mean, or their sum.
Tensor reduce_loss(const Tensor& loss, Reduction reduction);

struct CrossEntropyOptions {
  /// Rows with this label have loss 0 and no part in a mean.
  int64_t ignore_index = -100;
  Reduction reduction = Reduction::kMean;
  /// One weight per label, of the labels' shape, any dtype: the loss of each row is multiplied by
  /// it and a mean is sum(loss * mask) / sum(mask). Undefined: all ones.
  Tensor loss_mask = {};
  /// The target is (1 - s) on the label and s / V spread over all V valid columns. In [0, 1).
  double label_smoothing = 0;
  /// Number of columns that belong to the vocabulary; those behind it are padding, which takes no
  /// part in the sum and gets gradient 0. -1: all columns.
  int64_t valid_vocab = -1;
};

/// loss = logsumexp(logits) - logits[label] per row; logits [..., V], labels [...] int32 or int64.
///
/// Any strides. Losses are float32 (float64 for float64 logits). Saves logits, labels and one
/// number per row: probabilities are recomputed. If nobody else holds the logits when backward
/// comes to them, and the graph is not kept, their gradient is written in their place; else it is
/// the only other tensor of their size. ValueError if shapes disagree, if label_smoothing or
/// valid_vocab lies outside its range; TypeError for other dtypes; IndexError naming label,
/// position and V if a label that is not ignored lies outside [0, valid_vocab).
Tensor cross_entropy(const Tensor& logits,
                     const Tensor& labels,
                     const CrossEntropyOptions& options = {});
/// The same in elementary ops.
Tensor composed_cross_entropy(const Tensor& logits,
                              const Tensor& labels,
                              const CrossEntropyOptions& options = {});

/// Rows of logits that take as much memory in any dtype as 512 in float32: the more rows there are
/// at a time, the less it costs to lay out the weight for them.
inline int64_t chunk_rows_for(DType dtype) { return 512 * size_of(kFloat32) / size_of(dtype); }

struct LinearCrossEntropyOptions {
  CrossEntropyOptions loss = {};
  /// Rows of logits that exist at a time. At least 1.
  int64_t chunk_rows = 512;
  /// The weight rounded to hidden's dtype, where the caller has it; see linear().
  Tensor rounded = {};
  /// The loss is that of soft_cap(logits, logit_scale, logit_cap). A cap of 0: none.
  double logit_scale = 1;
  double logit_cap = 0;
  /// In exact mode, of the sum over the vocabulary that is hidden's gradient: a power of two.
  int64_t vocabulary_leaves = kSumLeaves;
  /// Gets the loss of each row, without its weight, where defined and the loss is reduced: of the
  /// labels' shape, contiguous, float32 (float64 for float64 hidden). Not part of the graph.
  Tensor losses = {};
};

/// cross_entropy(linear(hidden, weight), labels) without ever holding the logits: hidden [..., H],
/// weight [V, H], labels [...]. Dtypes and rounding as in linear(); the logits have hidden's dtype.
///
/// A sum or mean (of hidden other than float16) makes both gradients in forward, while it has the
/// logits of a chunk, and saves them; backward multiplies them by the gradient of the loss, and
/// main_grad takes the weight's over where it has no memory of its own. No product is made twice.
/// Otherwise hidden, weight, labels and one number per row are saved, and backward makes the logits
/// again: one matrix product more, and right for any weighting of the rows. The weight's gradient
/// is summed over chunks in float32 (float64). Errors as in linear() and cross_entropy();
/// ValueError if chunk_rows is not positive.
///
/// In exact mode (kernels/machine/exact.h) a sum makes exact sums of the weight's gradient, by the
/// leaves of exact_tokens(), and a tree over the vocabulary of hidden's; the gradient of the loss
/// must then be 1 (RuntimeError), which is what a weighted sum needs: loss_mask has all factors.
Tensor linear_cross_entropy(const Tensor& hidden,
                            const Tensor& weight,
                            const Tensor& labels,
                            const LinearCrossEntropyOptions& options = {});
/// The same in two ops.
Tensor composed_linear_cross_entropy(const Tensor& hidden,
                                     const Tensor& weight,
                                     const Tensor& labels,
                                     const LinearCrossEntropyOptions& options = {});

struct NllLossOptions {
  int64_t ignore_index = -100;
  Reduction reduction = Reduction::kMean;
};

/// -log_probs[label] per row; log_probs [..., V], labels [...] int32 or int64. Errors as in
/// cross_entropy. The result has log_probs' dtype. Saves labels.
Tensor nll_loss(const Tensor& log_probs, const Tensor& labels, const NllLossOptions& options = {});

/// (input - target)^2. ValueError if the shapes differ: nothing is broadcast.
Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean);

/// |input - target|. The gradient where both are equal is 0. ValueError if the shapes differ.
Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean);

struct SmoothL1LossOptions {
  Reduction reduction = Reduction::kMean;
  double beta = 1;  ///< where the parabola ends; 0: l1_loss
};
/// d^2 / (2 beta) where d = |input - target| is below beta, else d - beta / 2. ValueError if the
/// shapes differ or beta is negative.
Tensor smooth_l1_loss(const Tensor& input,
                      const Tensor& target,
                      const SmoothL1LossOptions& options = {});

struct KlDivOptions {
  Reduction reduction = Reduction::kMean;  ///< over all elements, not over samples
  bool log_target = false;                 ///< target holds log-probabilities, as input does
  /// The sum over the size of the first axis, which is the mean divergence of samples, in place of
  /// `reduction` (PyTorch's "batchmean"). ValueError for scalars.
  bool batch_mean = false;
};
/// Pointwise terms of the Kullback-Leibler divergence of input, log-probabilities, from target:
/// t (log t - input), 0 for t = 0; with log_target exp(t) (t - input). The gradient of target at
/// 0 is taken as -input. ValueError if the shapes differ.
Tensor kl_div(const Tensor& input, const Tensor& target, const KlDivOptions& options = {});

/// -(w y log(sigmoid(x)) + (1 - y) log(1 - sigmoid(x))) for logits x, targets y in [0, 1] and
/// pos_weight w, which broadcasts to x (undefined: 1). Neither logarithm overflows. ValueError if
/// the shapes of logits and targets differ or pos_weight does not broadcast.
Tensor binary_cross_entropy_with_logits(const Tensor& logits,
                                        const Tensor& targets,
                                        const Tensor& pos_weight = {},
                                        Reduction reduction = Reduction::kMean);

}  // namespace tapestry
