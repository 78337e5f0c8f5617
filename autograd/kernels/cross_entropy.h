// Cross entropy of logits and class labels, one loss per row, without storing probabilities.
//
// logits [rows, vocab] contiguous, floating; labels [rows]. Only the first valid_vocab columns
// count, the others are padding of the vocabulary: 1 <= valid_vocab <= vocab. A label that is
// neither in [0, valid_vocab) nor ignore_index names a column that lies elsewhere, where a
// vocabulary is split. loss and lse are float32, float64 where the logits are float64.
// Results do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "autograd/kernels/dtype.h"

namespace tapestry::kernels {

/// lse_i = logsumexp(logits_i); loss_i = lse_i - logits_i[label_i], 0 where the label is
/// ignore_index or lies elsewhere (lse is written there, too).
void cross_entropy(DType dtype,
                   int64_t rows,
                   int64_t vocab,
                   int64_t valid_vocab,
                   const void* logits,
                   const int64_t* labels,
                   int64_t ignore_index,
                   void* loss,
                   void* lse);

/// dlogits_i = (exp(logits_i - lse_i) - onehot(label_i)) dloss_i, the first being the softmax if
/// lse is that of these logits; onehot is 0 for a label that lies elsewhere. 0 in padding columns
/// and in rows whose label is ignore_index, whatever dloss is there. dloss [rows] has the type of
/// the loss. dlogits may be logits.
void cross_entropy_backward(DType dtype,
                            int64_t rows,
                            int64_t vocab,
                            int64_t valid_vocab,
                            const void* logits,
                            const int64_t* labels,
                            int64_t ignore_index,
                            const void* lse,
                            const void* dloss,
                            void* dlogits);

}  // namespace tapestry::kernels
