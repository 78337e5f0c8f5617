// What the losses over a vocabulary share: cross_entropy, and linear_cross_entropy, which makes the
// logits in pieces.
#pragma once

#include <string_view>

#include "autograd/ops/loss.h"

namespace tapestry {

/// The loss of rows of logits [rows, V], one by one.
struct CrossEntropyRows {
  int64_t valid = 0;  ///< columns that count
  int64_t ignore_index = 0;
  double smoothing = 0;

  CrossEntropyRows(const Shape& logits, const CrossEntropyOptions& options);

  /// Writes loss and logsumexp of each row. All contiguous and with as many rows; labels int64,
  /// loss and lse in wide_dtype of the logits. Not recorded, like backward().
  void forward(const Tensor& logits, const Tensor& labels, Tensor& loss, Tensor& lse) const;
  /// Writes the gradient for that of the loss; dlogits may be logits.
  void backward(const Tensor& logits,
                const Tensor& labels,
                const Tensor& lse,
                const Tensor& dloss,
                Tensor& dlogits) const;
  /// The loss in elementary ops, recorded.
  Tensor composed(const Tensor& logits, const Tensor& labels) const;
};

/// The errors that loss.h names; the logits themselves need not exist.
void check_cross_entropy(std::string_view op,
                         const Shape& logits,
                         DType dtype,
                         const Tensor& labels,
                         const CrossEntropyOptions& options);
void check_labels(std::string_view op,
                  const Shape& scores,
                  DType dtype,
                  const Tensor& labels,
                  int64_t columns,
                  int64_t ignore_index);

/// What each row counts: its mask, or 0 where the label is ignored.
Tensor row_weights(const Tensor& labels,
                   int64_t ignore_index,
                   const Tensor& loss_mask,
                   DType dtype);

/// Weighs the losses of rows, which are 0 where the label is ignored, and reduces them. All of this
/// is on one number per row.
Tensor reduce_rows(const Tensor& rows,
                   const Tensor& labels,
                   int64_t ignore_index,
                   const Tensor& loss_mask,
                   Reduction reduction);

}  // namespace tapestry
