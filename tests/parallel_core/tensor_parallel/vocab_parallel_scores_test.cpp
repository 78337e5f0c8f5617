// Scores of tokens by a head whose vocabulary is split, against one process.
#include "parallel_core/tensor_parallel/vocab_parallel_scores.h"

#include <gtest/gtest.h>

#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace vocab_parallel_scores_test {
namespace {

using testing::distance;
using testing::run_parallel;

constexpr int64_t kHidden = 6;

struct ScoresCase {
  int ranks;
  int64_t vocabulary;
  DType dtype;
  bool sequence_parallel = false;
  double temperature = 1;
  double cap = 0;
};

class SplitScores : public ::testing::TestWithParam<ScoresCase> {};

// A sum that depends on both scores, in no simple way.
Tensor curved(const RowTokenScores& s) {
  return sum(exp(s.log_probs * 0.5) + s.log_probs * s.entropy);
}

TEST_P(SplitScores, AreThoseOfTheWholeVocabulary) {
  const ScoresCase& c = GetParam();
  const Tensor hidden =
      normal(0, 1, {3, 4, kHidden}, c.dtype, RandomKey{5, 2, 0}).set_requires_grad();
  const Tensor weight =
      normal(0, 1, {c.vocabulary, kHidden}, c.dtype, RandomKey{5, 3, 0}).set_requires_grad();
  Tensor labels = randint(0, c.vocabulary, {3, 4}, kInt64, RandomKey{5, 4, 0});
  // Two rows do not count, some labels are the likeliest.
  labels.data<int64_t>()[5] = labels.data<int64_t>()[8] = -100;
  copy_values(argmax(linear(hidden.detach(), weight.detach()), -1).slice(0, 0, 1),
              labels.slice(0, 0, 1));
  const LinearTokenScoresOptions options = {
      .chunk_rows = 3, .logit_cap = c.cap, .temperature = c.temperature};
  const RowTokenScores whole = linear_token_scores(hidden, weight, labels, options);
  const TensorList gradients = grad(curved(whole), {hidden, weight});
  const double bound = c.dtype == kFloat64 ? 1e-13 : (c.dtype == kFloat32 ? 2e-6 : 2e-2);
  // All that ranks have is handed over without a graph of another's.
  const Tensor x = hidden.detach();
  run_parallel(c.ranks, {.tensor_model_parallel_size = c.ranks}, [&] {
    TransformerConfig config;
    config.sequence_parallel = c.sequence_parallel;
    const TensorParallelLayout tp = tensor_parallel_layout(config, false);
    const VocabularyShard shard = vocabulary_shard(c.vocabulary, tp.rank, tp.size);
    const auto piece = [&](const Tensor& t) {
      const int64_t own = 4 / tp.size;
      return c.sequence_parallel ? t.slice(1, tp.rank * own, (tp.rank + 1) * own) : t;
    };
    const auto rows = [&](const Tensor& t) {
      return t.slice(0, shard.first, shard.first + shard.valid);
    };
    // Padding holds zeros, or anything.
    for (const double padding : {0.0, 9.0}) {
      const Tensor own_x = piece(x).clone().set_requires_grad();
      const Tensor own_w = full({shard.rows, kHidden}, padding, c.dtype);
      copy_values(rows(weight.detach()), own_w.slice(0, 0, shard.valid));
      own_w.set_requires_grad();
      const auto scores = [&] {
        return vocab_parallel_token_scores(own_x, own_w, labels, options, c.vocabulary, tp);
      };
      const RowTokenScores found = scores();
      EXPECT_LE(distance(found.log_probs, whole.log_probs), bound);
      EXPECT_LE(distance(found.entropy, whole.entropy), bound);
      EXPECT_LE(distance(found.logit_means, whole.logit_means), bound);
      EXPECT_LE(distance(found.square_sums, whole.square_sums), bound);
      EXPECT_EQ(distance(found.likeliest, whole.likeliest), 0);
      EXPECT_GT(testing::largest(found.likeliest), 0);
      for (const bool recorded : {false, true}) {
        const TensorList d =
            grad(curved(scores()), {own_x, own_w}, {}, BackwardOptions{.create_graph = recorded});
        EXPECT_LE(distance(d[0], piece(gradients[0]), testing::largest(gradients[0])), bound);
        EXPECT_LE(distance(d[1].slice(0, 0, shard.valid), rows(gradients[1]),
                           testing::largest(gradients[1])),
                  bound);
        EXPECT_EQ(testing::largest(d[1].slice(0, shard.valid, shard.rows)), 0);
      }
    }
    EXPECT_THROW(vocab_parallel_token_scores(piece(x), ones({shard.rows + 1, kHidden}, c.dtype),
                                             labels, options, c.vocabulary, tp),
                 ValueError);
    EXPECT_THROW(
        vocab_parallel_token_scores(piece(x), ones({shard.rows, kHidden}, c.dtype),
                                    full({3, 4}, c.vocabulary, kInt64), options, c.vocabulary, tp),
        IndexError);
  });
}

INSTANTIATE_TEST_SUITE_P(Cases,
                         SplitScores,
                         ::testing::Values(ScoresCase{2, 12, kFloat32},
                                           ScoresCase{2, 13, kFloat64, true, 0.7},
                                           ScoresCase{4, 14, kFloat64, true, 1.3, 2},
                                           ScoresCase{4, 5, kFloat64, false,
                                                      0.5},  // a rank without rows
                                           ScoresCase{4, 1031, kFloat32, true},
                                           ScoresCase{2, 30, kBFloat16},
                                           ScoresCase{4, 30, kFloat16, true}),
                         [](const auto& info) {
                           const ScoresCase& c = info.param;
                           return concat("tp", c.ranks, c.sequence_parallel ? "_sp" : "", "_v",
                                         c.vocabulary, "_", name_of(c.dtype),
                                         c.cap > 0 ? "_capped" : "");
                         });

TEST(SplitScores, HaveGradientsOfGradients) {
  const Tensor hidden = normal(0, 1, {2, 4, kHidden}, kFloat64, RandomKey{5, 2, 0});
  const Tensor weight = normal(0, 1, {9, kHidden}, kFloat64, RandomKey{5, 3, 0});
  const Tensor labels = randint(0, 9, {2, 4}, kInt64, RandomKey{5, 4, 0});
  const auto second = [&](const Tensor& x, const Tensor& w, const TensorParallelLayout& layout) {
    const RowTokenScores s = vocab_parallel_token_scores(x, w, labels, {}, 9, layout);
    const Tensor dx = grad(curved(s), {x}, {}, BackwardOptions{.create_graph = true})[0];
    return grad(sum(sin(dx)), {w})[0];
  };
  const Tensor expected =
      second(hidden.clone().set_requires_grad(), weight.clone().set_requires_grad(), {});
  run_parallel(2, {.tensor_model_parallel_size = 2}, [&] {
    const TensorParallelLayout tp = tensor_parallel_layout({}, false);
    const VocabularyShard shard = vocabulary_shard(9, tp.rank, tp.size);
    const Tensor own = zeros({shard.rows, kHidden}, kFloat64);
    copy_values(weight.slice(0, shard.first, shard.first + shard.valid),
                own.slice(0, 0, shard.valid));
    own.set_requires_grad();
    const Tensor found = second(hidden.clone().set_requires_grad(), own, tp);
    EXPECT_LE(distance(found.slice(0, 0, shard.valid),
                       expected.slice(0, shard.first, shard.first + shard.valid)),
              1e-12);
  });
}

}  // namespace
}  // namespace vocab_parallel_scores_test
}  // namespace tapestry
