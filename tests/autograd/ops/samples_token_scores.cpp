// Samples of what a head says of single tokens.
#include "autograd/ops/heads/token_scores.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

namespace {

auto token_scores_with(const LinearTokenScoresOptions& options) {
  return [=](const Tensor& hidden, const Tensor& weight, const Tensor& labels) -> TensorList {
    const RowTokenScores scores = linear_token_scores(hidden, weight, labels, options);
    return {scores.log_probs, scores.entropy};
  };
}

}  // namespace

OP_SAMPLES(linear_token_scores) {
  rounds(3, 4);  // logits are rounded, which are larger than the entropy that all of them move
  // Chunks that divide the rows, that do not, and one that holds them all.
  for (const int64_t chunk_rows : {2, 3, 100}) {
    add(token_scores_with({.chunk_rows = chunk_rows}),
        {randn({4, 3}), randn({5, 3}), integers({4}, 5)});
    // Rows that are left out.
    add(token_scores_with({.ignore_index = 2, .chunk_rows = chunk_rows}),
        {randn({2, 4, 4}), randn({6, 4}), integers({2, 4}, 4)});
  }
  const auto fn = token_scores_with({.chunk_rows = 2});
  add(fn, {randn({3, 4}), randn({5, 4}), integers({3}, 5)}).differentiable({0});
  add(fn, {randn({3, 4}), randn({5, 4}), integers({3}, 5)}).differentiable({1});
  add(fn, {randn({0, 4}), randn({5, 4}), integers({0}, 5)});
  add(fn, {randn({4}), randn({5, 4}), integers({}, 5)});
  add(token_scores_with({.ignore_index = 0}), {randn({3, 4}), randn({5, 4}), zeros({3}, kInt64)});
  for (const double temperature : {0.6, 1.7}) {
    add(token_scores_with({.chunk_rows = 2, .temperature = temperature}),
        {randn({5, 3}), randn({4, 3}), integers({5}, 4)});
  }
  add(token_scores_with({.chunk_rows = 2, .logit_scale = 0.25}),
      {randn({5, 3}), randn({4, 3}), integers({5}, 4)});
  add(token_scores_with({.ignore_index = 1,
                         .chunk_rows = 2,
                         .logit_scale = -2,
                         .logit_cap = 0.7,
                         .temperature = 1.3}),
      {randn({5, 3}), randn({4, 3}), integers({5}, 4)});
  // The rounding of logits up to 30 is that of numbers ten times as large as an entropy.
  add_large(token_scores_with({.ignore_index = 3, .chunk_rows = 64}),
            {randn({150, 64}), randn({300, 64}), integers({150}, 300)})
      .rounds(12, 16)
      .threads_may_round();
  add_large(token_scores_with({.chunk_rows = 64, .temperature = 8}),
            {randn({150, 64}), randn({300, 64}), integers({150}, 300)})
      .rounds(3, 8)
      .threads_may_round();
  const TensorList good = {randn({3, 4}), randn({5, 4}), integers({3}, 5)};
  add_error<ValueError>(token_scores_with({.chunk_rows = 0}), good, "chunk_rows");
  add_error<ValueError>(token_scores_with({.logit_cap = -1}), good, "logit_cap");
  add_error<ValueError>(token_scores_with({.temperature = 0}), good, "temperature");
  add_error<ValueError>(fn, {randn({3, 4}), randn({5, 3}), integers({3}, 5)}, "[5, 3]");
  add_error<ValueError>(fn, {randn({3, 4}), randn({5}), integers({3}, 5)}, "[V, H]");
  add_error<ValueError>(fn, {randn({3, 4}), randn({5, 4}), integers({4}, 5)}, "labels [4]");
  add_error<IndexError>(fn, {randn({3, 4}), randn({2, 4}), full({3}, 2, kInt64)}, "label 2");
  add_error<TypeError>(fn, {randn({3, 4}).to(kFloat32), randn({5, 4}), integers({3}, 5)},
                       "float64");
}

}  // namespace tapestry
