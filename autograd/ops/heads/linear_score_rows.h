// The work of linear_token_scores() on the columns of a vocabulary that a rank has: all, or those
// of its part. Nothing here is recorded, except composed().
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "autograd/ops/heads/logit_chunks.h"
#include "autograd/ops/heads/token_scores.h"
#include "autograd/tape/op.h"

namespace tapestry {

/// Which columns of a vocabulary the weight's rows are.
struct ScoredColumns {
  int64_t vocabulary = 0;
  int64_t first = 0;  ///< the column that is row 0 of the weight
  int64_t rows = 0;   ///< of the weight, on every rank
  int64_t valid = 0;  ///< those that are no padding
};

/// Order of the scores in the tensor [kTokenScores, ...] that the ops return.
enum TokenScoreIndex : uint8_t {
  kScoreOfLabel,
  kScoreEntropy,
  kScoreLogitMean,
  kScoreLikeliest,
  kScoreSquares,
  kTokenScores
};

class LinearScoreRows {
 public:
  /// Rows whose label is ignored are left out. labels [..] int64 of the whole vocabulary.
  LinearScoreRows(const LinearTokenScoresOptions& options,
                  const ScoredColumns& columns,
                  const Tensor& labels);

  /// The numbers of kernels::RowScore of the rows that count, over the own columns: float64
  /// [rows, kRowScores]. `weight` has hidden's dtype.
  Tensor scores_of_columns(const Tensor& hidden, const Tensor& weight) const;

  struct Combined {
    Tensor scores;   ///< [kTokenScores, ...]: 0 in rows that do not count
    Tensor log_sum;  ///< float64 [rows], as the next: what backward needs
    Tensor entropy;
  };
  /// From those of all ranks, [ranks, rows, kRowScores].
  Combined combine(const Tensor& of_ranks, DType dtype) const;

  /// Gradients of hidden and weight, of the latter's own rows, from that of Combined::scores.
  /// `exact` is the weight itself, `weight` that in hidden's dtype.
  TensorList backward(const Tensor& hidden,
                      const Tensor& exact,
                      const Tensor& weight,
                      const Tensor& log_sum,
                      const Tensor& entropy,
                      const Tensor& dy,
                      NeedsGrad needs) const;

  /// The same for gradients of gradients, in elementary ops. `total` sums over ranks, `largest`
  /// takes their maximum in place; both may be empty.
  TensorList composed_backward(const Tensor& hidden,
                               const Tensor& weight,
                               const Tensor& dy,
                               const std::function<Tensor(const Tensor&)>& total,
                               const std::function<void(Tensor&)>& largest) const;

  /// Rows that count.
  int64_t count() const { return static_cast<int64_t>(rows_.size()); }

 private:
  bool takes_all() const { return count() == total_; }
  Tensor rows_of_chunk(const Tensor& x, const Tensor& space, int64_t begin, int64_t end) const;
  template <class F>
  void for_row_chunks(const Tensor& x, const Tensor& weight, const F& f) const;

  bool one_order_;  // logits are made again as they were made, see OneOrderScope
  LogitForm form_;
  double temperature_;
  int64_t chunk_rows_;
  ScoredColumns columns_;
  Shape shape_;  // of the labels
  int64_t total_;
  std::vector<int64_t> rows_;        // that count, in order
  std::vector<int64_t> labels_;      // theirs, of the whole vocabulary
  std::vector<int64_t> own_labels_;  // the column here, or -1
};

/// The errors that token_scores.h names. The weight has `rows` of the `vocabulary`.
void check_token_scores(std::string_view op,
                        const Tensor& hidden,
                        const Tensor& weight,
                        const Tensor& labels,
                        const LinearTokenScoresOptions& options,
                        int64_t vocabulary);

/// The scores from the tensor that an op returns.
RowTokenScores split_token_scores(const Tensor& scores);

}  // namespace tapestry
