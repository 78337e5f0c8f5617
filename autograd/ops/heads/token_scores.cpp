#include "autograd/ops/heads/token_scores.h"

#include <memory>

#include "autograd/kernels/losses/row_scores.h"
#include "autograd/ops/heads/linear_score_rows.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/op.h"

namespace tapestry {

namespace {

struct LinearTokenScores {
  static constexpr OpName name = "linear_token_scores";
  std::shared_ptr<const LinearScoreRows> rows;
  Tensor rounded;  // the weight in hidden's dtype, where that differs
  SavedTensor hidden = {}, weight = {}, log_sum = {}, entropy = {};

  void for_float64() { rounded = {}; }
  Tensor forward(const Tensor& hidden_, const Tensor& weight_) {
    hidden.save(hidden_);
    weight.save(weight_);
    if (weight_.dtype() != hidden_.dtype() && !rounded.defined()) {
      rounded = weight_.to(hidden_.dtype());
    }
    const Tensor own =
        rows->scores_of_columns(hidden_, dense(rounded.defined() ? rounded : weight_));
    const LinearScoreRows::Combined all = rows->combine(
        own.view({1, rows->count(), kernels::kRowScores}), wide_dtype(hidden_.dtype()));
    log_sum.save(all.log_sum);
    entropy.save(all.entropy);
    return all.scores;
  }

  TensorList backward(const Tensor& dy, NeedsGrad needs) const {
    if (grad_enabled()) {
      return rows->composed_backward(hidden, weight, dy, nullptr, nullptr);
    }
    const Tensor exact = weight;  // notices a change in place also where the copy is used
    return rows->backward(hidden, exact, dense(rounded.defined() ? rounded : exact), log_sum,
                          entropy, dy, needs);
  }
};

}  // namespace

RowTokenScores linear_token_scores(const Tensor& hidden,
                                   const Tensor& weight,
                                   const Tensor& labels,
                                   const LinearTokenScoresOptions& options) {
  check_token_scores("linear_token_scores", hidden, weight, labels, options,
                     weight.defined() && weight.dim() == 2 ? weight.shape()[0] : 0);
  const int64_t vocabulary = weight.shape()[0];
  const auto rows = std::make_shared<const LinearScoreRows>(
      options,
      ScoredColumns{.vocabulary = vocabulary, .first = 0, .rows = vocabulary, .valid = vocabulary},
      labels.to(kInt64));
  return split_token_scores(apply_op(LinearTokenScores{rows, options.rounded}, hidden, weight));
}

}  // namespace tapestry
