// Cross entropy of logits and class labels, one loss per row, without storing probabilities.
//
// logits [rows, vocab] contiguous, floating; labels [rows]. Only the first valid_vocab columns
// count, the others are padding of the vocabulary: 1 <= valid_vocab <= vocab. A label that is
// neither in [0, valid_vocab) nor ignore_index names a column that lies elsewhere, where a
// vocabulary is split. loss and lse are float32, float64 where the logits are float64.
// Results do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

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

}  // namespace tapestry::kernels
