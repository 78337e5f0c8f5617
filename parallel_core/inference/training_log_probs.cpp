#include "parallel_core/inference/training_log_probs.h"

#include <algorithm>
#include <limits>

#include "autograd/kernels/losses/row_scores.h"
#include "autograd/ops/heads/linear_score_rows.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

std::vector<double> training_log_probs(const Tensor& logits,
                                       std::span<const int64_t> ids,
                                       double temperature) {
  const NoGradGuard guard;
  const int64_t rows = logits.size(0);
  const int64_t vocabulary = logits.size(1);
  const int64_t ranks =
      model_parallel_is_initialized() ? get_tensor_model_parallel_world_size() : 1;
  const Tensor labels = tensor(std::vector<int64_t>(ids.begin(), ids.end()), {rows});
  const Tensor scores = empty({ranks, rows, kernels::kRowScores}, kFloat64);
  ScoredColumns columns;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const VocabularyShard shard =
        vocabulary_shard(vocabulary, static_cast<int>(rank), static_cast<int>(ranks));
    columns = {
        .vocabulary = vocabulary, .first = shard.first, .rows = shard.rows, .valid = shard.valid};
    double* of_rank = scores.data<double>() + rank * rows * kernels::kRowScores;
    if (shard.valid == 0) {  // padding alone, as small vocabularies leave it
      std::fill_n(of_rank, rows * kernels::kRowScores, -std::numeric_limits<double>::infinity());
      continue;
    }
    const Tensor own = logits.slice(1, shard.first, shard.first + shard.valid).contiguous();
    std::vector<int64_t> own_labels(ids.begin(), ids.end());
    for (int64_t& label : own_labels) {
      label -= shard.first;
      label = label >= 0 && label < shard.valid ? label : -1;
    }
    kernels::row_scores({.shape = {.dtype = own.dtype(),
                                   .rows = rows,
                                   .vocab = shard.valid,
                                   .valid_vocab = shard.valid,
                                   .temperature = temperature},
                         .logits = own.raw(),
                         .labels = own_labels.data(),
                         .scores = of_rank});
  }
  const LinearScoreRows all({.temperature = temperature}, columns, labels);
  const Tensor told = all.combine(scores, kFloat32).scores;
  const float* log_probs = told.data<float>() + kScoreOfLabel * rows;
  return {log_probs, log_probs + rows};
}

}  // namespace tapestry
