#include "parallel_core/tensor_parallel/vocab_parallel_scores.h"

#include <memory>

#include "autograd/ops/heads/linear_score_rows.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/tensor_parallel/mappings.h"

namespace tapestry {

namespace {

struct SplitTokenScores {
  static constexpr OpName name = "vocab_parallel_token_scores";
  static constexpr bool communicates = true;
  ProcessGroup* group;
  std::shared_ptr<const LinearScoreRows> rows;
  Tensor rounded;  // the weight in hidden's dtype, where that differs
  SavedTensor hidden = {}, weight = {}, log_sum = {}, entropy = {};

  Tensor forward(const Tensor& hidden_, const Tensor& weight_) {
    hidden.save(hidden_);
    weight.save(weight_);
    if (weight_.dtype() != hidden_.dtype() && !rounded.defined()) {
      rounded = weight_.to(hidden_.dtype());
    }
    const Tensor own =
        rows->scores_of_columns(hidden_, dense(rounded.defined() ? rounded : weight_));
    Shape shape = own.shape();
    shape.insert(0, group->size());
    const Tensor of_ranks = empty(shape, own.dtype());
    group->all_gather(of_ranks, own);
    const LinearScoreRows::Combined all = rows->combine(of_ranks, wide_dtype(hidden_.dtype()));
    log_sum.save(all.log_sum);
    entropy.save(all.entropy);
    return all.scores;
  }

  // Nothing is needed from other ranks.
  TensorList backward(const Tensor& dy, NeedsGrad needs) const {
    if (grad_enabled()) {
      return rows->composed_backward(
          hidden, weight, dy,
          [this](const Tensor& part) { return reduce_from_model_parallel_region(part, *group); },
          [this](Tensor& largest) { group->all_reduce(largest, ReduceOp::kMax); });
    }
    const Tensor exact = weight;  // notices a change in place also where the copy is used
    return rows->backward(hidden, exact, dense(rounded.defined() ? rounded : exact), log_sum,
                          entropy, dy, needs);
  }
};

}  // namespace

RowTokenScores vocab_parallel_token_scores(const Tensor& hidden,
                                           const Tensor& weight,
                                           const Tensor& labels,
                                           const LinearTokenScoresOptions& options,
                                           int64_t vocabulary,
                                           const TensorParallelLayout& layout) {
  if (layout.size == 1) {
    return linear_token_scores(hidden, weight, labels, options);
  }
  constexpr std::string_view op = "token_scores";
  check_defined(op, hidden, "hidden", weight, "weight", labels, "labels");
  const VocabularyShard shard = vocabulary_shard(vocabulary, layout.rank, layout.size);
  check<ValueError>(weight.dim() == 2 && weight.shape()[0] == shard.rows, op, ": weight ",
                    weight.shape(), " must have the ", shard.rows, " rows that a rank has of ",
                    vocabulary);
  const Tensor whole = layout.sequence_axis ? gather_from_sequence_parallel_region(
                                                  hidden, *layout.sequence_axis, *layout.group)
                                            : copy_to_model_parallel_region(hidden, *layout.group);
  check_token_scores(op, whole, weight, labels, options, vocabulary);
  const auto rows = std::make_shared<const LinearScoreRows>(
      options,
      ScoredColumns{
          .vocabulary = vocabulary, .first = shard.first, .rows = shard.rows, .valid = shard.valid},
      labels.to(kInt64));
  return split_token_scores(
      apply_op(SplitTokenScores{layout.group, rows, options.rounded}, whole, weight));
}

}  // namespace tapestry
