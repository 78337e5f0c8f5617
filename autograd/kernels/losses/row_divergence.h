// Divergence of the distributions that two rows of logits stand for, without storing either.
//
// logits (of the student, x) and others (of the teacher, y) are [rows, vocab] contiguous, each in a
// floating dtype of its own. Only the first valid_vocab columns count: 1 <= valid_vocab <= vocab.
// s = x / temperature - log_sum and t = y / temperature - other_log_sum are the log-probabilities,
// p = exp(s), q = exp(t); where a vocabulary is split, the log sums are those of all of it.
// Results do not depend on the number of threads.
//
// The divergence is the generalised Jensen-Shannon divergence of Agarwal et al. 2023,
// arXiv:2306.13649, with m = ln((1 - beta) p + beta q):
//   beta 0: sum q (t - s);  beta 1: sum p (s - t);
//   else:   beta sum q (t - m) + (1 - beta) sum p (s - m).
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// What both passes share.
struct RowDivergenceShape {
  DType dtype = kFloat32;  ///< of the logits
  DType other_dtype = kFloat32;
  int64_t rows = 0;
  int64_t vocab = 0;
  int64_t valid_vocab = 0;
  double temperature = 1;  ///< above 0
  double beta = 0;         ///< in [0, 1]
};

/// Writes sums [rows, 2]: the terms of the divergence over these columns, and sum p g with
/// g = dD/dp (s - t for beta 1, (1 - beta) (s - m) between), 0 for beta 0, for backward.
struct RowDivergenceForward {
  RowDivergenceShape shape;
  const void* logits = nullptr;
  const void* others = nullptr;
  const double* log_sum = nullptr;
  const double* other_log_sum = nullptr;
  double* sums = nullptr;
};
void row_divergence(const RowDivergenceForward& call);

/// The gradient of ddivergence D + dlog_prob ln softmax(x)[label] for x:
///   ddivergence / temperature (beta 0: p - q; else p (g - sum p g))
///   + dlog_prob (onehot(label) - exp(x - plain_log_sum)).
/// `mean` is sum p g. A label outside of the valid columns lies elsewhere; without dlog_prob there
/// are no labels and no plain_log_sum. 0 in padding columns. dlogits, of the logits' shape and
/// dtype, may be logits. Without `others` the first term is ddivergence / temperature p alone.
struct RowDivergenceBackward {
  RowDivergenceShape shape;
  const void* logits = nullptr;
  const void* others = nullptr;
  const double* log_sum = nullptr;
  const double* other_log_sum = nullptr;
  const double* mean = nullptr;
  const double* ddivergence = nullptr;
  const int64_t* labels = nullptr;
  const double* plain_log_sum = nullptr;
  const double* dlog_prob = nullptr;
  void* dlogits = nullptr;
};
void row_divergence_backward(const RowDivergenceBackward& call);

}  // namespace tapestry::kernels
