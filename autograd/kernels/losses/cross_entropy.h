// Cross entropy of logits and class labels, one loss per row, without storing probabilities.
//
// logits [rows, vocab] contiguous, floating; labels [rows]. Only the first valid_vocab columns
// count, the others are padding of the vocabulary: 1 <= valid_vocab <= vocab. A label that is
// neither in [0, valid_vocab) nor ignore_index names a column that lies elsewhere, where a
// vocabulary is split. loss and lse are float32, float64 where the logits are float64.
// Results do not depend on the number of threads.
//
// In exact mode (machine/exact.h) the exponentials of a row are taken relative to the maximum of
// the whole row, and their sum is a tree over kSumLeaves leaves of the vocabulary, padding
// included. Where ranks share it, each has a subtree of that tree: the functions below in turn,
// with a maximum and a sum over the ranks between them, give the bits of cross_entropy().
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"
#include "autograd/kernels/machine/exact.h"

namespace tapestry::kernels {

/// What both passes share.
struct CrossEntropyShape {
  DType dtype = kFloat32;  ///< of the logits
  int64_t rows = 0;
  int64_t vocab = 0;
  int64_t valid_vocab = 0;
  int64_t ignore_index = 0;
};

/// lse_i = logsumexp(logits_i); loss_i = lse_i - logits_i[label_i], 0 where the label is
/// ignore_index or lies elsewhere (lse is written there, too).
struct CrossEntropyForward {
  CrossEntropyShape shape;
  const void* logits = nullptr;
  const int64_t* labels = nullptr;
  void* loss = nullptr;
  void* lse = nullptr;
};
void cross_entropy(const CrossEntropyForward& call);

/// dlogits_i = (exp(logits_i - lse_i) - onehot(label_i)) dloss_i, the first being the softmax if
/// lse is that of these logits; onehot is 0 for a label that lies elsewhere. 0 in padding columns
/// and in rows whose label is ignore_index, whatever dloss is there. dloss [rows] has the type of
/// the loss. dlogits may be logits.
struct CrossEntropyBackward {
  CrossEntropyShape shape;
  const void* logits = nullptr;
  const int64_t* labels = nullptr;
  const void* lse = nullptr;
  const void* dloss = nullptr;
  void* dlogits = nullptr;
};
void cross_entropy_backward(const CrossEntropyBackward& call);

/// maxima_i = the largest of the valid logits of row i, NaN left out; -inf where there are none
/// (here and below valid_vocab may be 0). maxima has the type of the loss.
void cross_entropy_maxima(const CrossEntropyShape& shape, const void* logits, void* maxima);

/// sums_i = the sum of exp(logits_i - maxima_i) over the valid columns; logits alone where the
/// maximum is infinite. The columns are so many neighbouring leaves of the vocabulary, of which
/// leaf i is [i vocab / leaves, (i + 1) vocab / leaves), and their sums are added as a balanced
/// binary tree of neighbours: ((l0 + l1) + (l2 + l3)) + ...
struct CrossEntropyExponentials {
  CrossEntropyShape shape;
  const void* logits = nullptr;
  const void* maxima = nullptr;  ///< of the whole vocabulary
  int64_t leaves = kSumLeaves;   ///< a power of two up to kSumLeaves
  double* sums = nullptr;        ///< [rows]
};
void cross_entropy_exponentials(const CrossEntropyExponentials& call);

/// label_logits_i = logits_i[label_i], 0 where the label is ignore_index or lies elsewhere: their
/// sum over the ranks is exact. It has the type of the loss.
void cross_entropy_label_logits(const CrossEntropyShape& shape,
                                const void* logits,
                                const int64_t* labels,
                                void* label_logits);

/// lse_i = log(sums_i) + maxima_i; loss_i = lse_i - label_logits_i, 0 where the label is
/// ignore_index. All are of the whole vocabulary; of the shape, dtype, rows and ignore_index
/// count. lse may be null.
struct CrossEntropyFinish {
  CrossEntropyShape shape;
  const void* maxima = nullptr;
  const double* sums = nullptr;
  const void* label_logits = nullptr;
  const int64_t* labels = nullptr;
  void* loss = nullptr;
  void* lse = nullptr;
};
void cross_entropy_finish(const CrossEntropyFinish& call);

}  // namespace tapestry::kernels
