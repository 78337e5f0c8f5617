// What rows of logits say of their labels and of the distribution softmax(logits / temperature),
// without storing it.
//
// logits [rows, vocab] contiguous, floating; labels [rows]. Only the first valid_vocab columns
// count: 1 <= valid_vocab <= vocab. A label outside of them names a column that lies elsewhere,
// where a vocabulary is split. Results do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// What both passes share.
struct RowScoresShape {
  DType dtype = kFloat32;  ///< of the logits
  int64_t rows = 0;
  int64_t vocab = 0;
  int64_t valid_vocab = 0;
  double temperature = 1;  ///< above 0
};

/// The numbers of a row, of logits x, z = x / temperature and p = softmax(z).
enum RowScore : uint8_t {
  kScoreLogSum,       ///< ln sum exp(z)
  kScoreLabel,        ///< z[label], 0 where the label lies elsewhere
  kScoreMean,         ///< sum p z, so that the entropy is what it lies below the log sum
  kScoreSquareSum,    ///< ln sum exp(2 z)
  kScoreSum,          ///< sum x
  kScoreLargest,      ///< max x
  kScoreIsLikeliest,  ///< 1 where x[label] is the first of the largest
  kRowScores
};

/// Writes scores [rows, kRowScores].
struct RowScoresForward {
  RowScoresShape shape;
  const void* logits = nullptr;
  const int64_t* labels = nullptr;
  double* scores = nullptr;
};
void row_scores(const RowScoresForward& call);

/// The gradient of dlog_prob ln p[label] + dentropy H, H = -sum p ln p, for the logits:
/// (dlog_prob (onehot(label) - p) - dentropy p (ln p + H)) / temperature; p = exp(z - log_sum),
/// onehot is 0 for a label that lies elsewhere. 0 in padding columns. All but labels are [rows].
/// dlogits, of the logits' shape, may be logits.
struct RowScoresBackward {
  RowScoresShape shape;
  const void* logits = nullptr;
  const int64_t* labels = nullptr;
  const double* log_sum = nullptr;
  const double* entropy = nullptr;
  const double* dlog_prob = nullptr;
  const double* dentropy = nullptr;
  void* dlogits = nullptr;
};
void row_scores_backward(const RowScoresBackward& call);

}  // namespace tapestry::kernels
