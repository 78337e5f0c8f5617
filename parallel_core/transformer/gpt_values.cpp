// What the score head of a reward model gives each token (TokenScoresRequest::values).
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "parallel_core/tensor_parallel/mappings.h"
#include "parallel_core/transformer/gpt_model.h"

namespace tapestry {

void GPTModel::check_head(const ModelInput& input) const {
  const bool asks_values = input.scores != nullptr && input.scores->values;
  check<ValueError>(
      !score_head_ || asks_values,
      "gpt: this is a reward model (model_config.score_head): it gives texts a value "
      "and predicts no tokens, so it cannot be trained on the next token, write texts "
      "or tell their probability. `evaluate --reward` asks it for values, and "
      "post_training_config.task: reward trains it");
  check<ValueError>(score_head_ || !asks_values,
                    "gpt: values are those of a score head, which this model has not "
                    "(model_config.score_head)");
}

TokenScores GPTModel::token_values(const Tensor& hidden) const {
  // Rewards differ by less than 16-bit numbers near them do.
  const Tensor wide = float_or_wider(hidden);
  const Tensor column = linear(wide, language_model_->score_weight().to(wide.dtype()));
  Tensor own = squeeze(column, -1);
  const TensorParallelLayout& tensor = tensor_layout();
  if (tensor.sequence_axis) {
    own = gather_from_model_parallel_region(own, *tensor.sequence_axis, *tensor.group);
  }
  TokenScores scores;
  scores.values = gather_alike_chunks(in_layout(own), 1, context_layout()).to(kFloat32);
  return scores;
}

}  // namespace tapestry
