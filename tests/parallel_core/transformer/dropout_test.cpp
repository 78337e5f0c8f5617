// Dropout depends on seed, step, sample and place alone, not on how the work is cut.
#include <gtest/gtest.h>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tape/checkpoint.h"
#include "autograd/tensor/error.h"
#include "parallel_core/random.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::distance;
using testing::Gradients;
using testing::make_batch;
using testing::Overrides;
using testing::run_step;
using testing::Trainer;

const std::string kHidden = "model_config.hidden_dropout=0.3";
const std::string kAttention = "model_config.attention_dropout=0.3";

void set_samples(int64_t step, std::vector<int64_t> ids) {
  random_context().seed = 7;
  random_context().step = step;
  random_context().sample_ids = std::move(ids);
}

// The mask that hidden states get: 0 or 1 / (1 - p) for each element.
Tensor mask_of(int64_t step, const std::vector<int64_t>& ids, bool sequence_first = false) {
  set_samples(step, ids);
  const auto rows = static_cast<int64_t>(ids.size());
  const Shape shape = sequence_first ? Shape{5, rows, 6} : Shape{rows, 5, 6};
  return hidden_dropout(ones(shape), 0.4, 1, DropoutSite::kMlpOutput, sequence_first ? 1 : 0);
}

TEST(HiddenDropout, ARowsMaskIsItsSamples) {
  const Tensor together = mask_of(3, {4, 5, 6, 7});
  const Tensor scattered = mask_of(3, {7, 4, 5, 9});
  const Tensor sequence_first = mask_of(3, {7, 4, 5, 9}, true);
  EXPECT_TRUE(testing::same_bits(scattered.slice(0, 0, 1), together.slice(0, 3, 4)));
  EXPECT_TRUE(testing::same_bits(scattered.slice(0, 1, 3), together.slice(0, 0, 2)));
  EXPECT_TRUE(testing::same_bits(scattered.slice(0, 3, 4), mask_of(3, {9})));
  EXPECT_TRUE(testing::same_bits(sequence_first.transpose(0, 1), scattered));
  EXPECT_FALSE(testing::same_bits(together.slice(0, 0, 1), together.slice(0, 1, 2)));
  for (const float value : together.to_vector<float>()) {
    EXPECT_TRUE(value == 0.0F || value == 1.0F / 0.6F) << value;
  }
}

TEST(HiddenDropout, StepLayerSiteAndSeedCount) {
  const Tensor mask = mask_of(3, {0, 1});
  EXPECT_TRUE(testing::same_bits(mask, mask_of(3, {0, 1})));
  EXPECT_FALSE(testing::same_bits(mask, mask_of(4, {0, 1})));
  const Tensor x = ones({2, 5, 6});
  EXPECT_FALSE(testing::same_bits(mask, hidden_dropout(x, 0.4, 2, DropoutSite::kMlpOutput, 0)));
  set_samples(3, {0, 1});
  EXPECT_FALSE(
      testing::same_bits(mask, hidden_dropout(x, 0.4, 1, DropoutSite::kAttentionOutput, 0)));
  random_context().seed = 8;
  EXPECT_FALSE(testing::same_bits(mask, hidden_dropout(x, 0.4, 1, DropoutSite::kMlpOutput, 0)));
}

TEST(HiddenDropout, RateAndErrors) {
  set_samples(0, {0});
  const Tensor x = ones({1, 200, 100});
  int64_t kept = 0;
  for (const float v : hidden_dropout(x, 0.25, 0, DropoutSite::kEmbedding, 0).to_vector<float>()) {
    kept += v != 0 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(kept) / 20000, 0.75, 0.015);
  EXPECT_TRUE(hidden_dropout(x, 0, 0, DropoutSite::kEmbedding, 0).is_same(x));
  EXPECT_THROW(hidden_dropout(x, 1, 0, DropoutSite::kEmbedding, 0), ValueError);
  EXPECT_THROW(hidden_dropout(x, -0.1, 0, DropoutSite::kEmbedding, 0), ValueError);
  EXPECT_THROW(hidden_dropout(ones({2, 3, 4}), 0.1, 0, DropoutSite::kEmbedding, 0), ValueError);
}

// In a pipeline other micro-batches have run forward by then.
TEST(HiddenDropout, ACheckpointDrawsForTheSamplesThatItSawFirst) {
  const auto gradient = [](bool recompute) {
    set_samples(3, {4, 5});
    const Tensor x = ones({2, 5, 6}).set_requires_grad();
    const auto drop = [](const TensorList& in) {
      return hidden_dropout(in[0], 0.4, 1, DropoutSite::kMlpOutput, 0) * in[0];
    };
    const Tensor loss = sum(recompute ? checkpoint(drop, {x}) : drop({x}));
    set_samples(4, {8, 9, 10});
    loss.backward();
    EXPECT_EQ(random_context().sample_ids.size(), 3U);
    EXPECT_EQ(random_context().step, 4);
    return x.grad();
  };
  EXPECT_TRUE(testing::same_bits(gradient(true), gradient(false)));
}

TEST(SampleRuns, ConsecutiveSamplesAreOneRun) {
  set_samples(0, {3, 4, 5, 9, 8, 9});
  const std::vector<SampleRun> runs = sample_runs(6);
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_EQ(runs[0].end, 3);
  EXPECT_EQ(runs[0].first_sample, 3);
  EXPECT_EQ(runs[1].begin, 3);
  EXPECT_EQ(runs[1].end, 4);
  EXPECT_EQ(runs[2].first_sample, 8);
  EXPECT_EQ(runs[2].end, 6);
  EXPECT_THROW(sample_runs(5), ValueError);
}

class ModelDropout : public ::testing::TestWithParam<Overrides> {
 protected:
  // Gradients of the first step over four samples, cut into micro-batches of the given sizes.
  static Gradients gradients(const std::vector<int64_t>& cut, const Overrides& more = {}) {
    Overrides overrides = GetParam();
    overrides.insert(overrides.end(), more.begin(), more.end());
    Trainer trainer(overrides);
    testing::jitter(*trainer.model);
    std::vector<data::Batch> micro_batches;
    int64_t first = 0;
    for (const int64_t rows : cut) {
      micro_batches.push_back(make_batch(trainer.config, rows, first, /*full_mask=*/true));
      first += rows;
    }
    return run_step(trainer, micro_batches);
  }
};

TEST_P(ModelDropout, MicroBatchSizeDoesNotMatter) {
  const Gradients whole = gradients({4});
  const std::vector<std::vector<int64_t>> cuts = {{1, 1, 1, 1}, {2, 2}};
  for (const auto& cut : cuts) {
    const Gradients found = gradients(cut);
    EXPECT_NEAR(found.result.loss, whole.result.loss, 1e-6 * whole.result.loss);
    testing::expect_states_close(found.tensors, whole.tensors, 5e-6);
  }
}

TEST_P(ModelDropout, LayoutAndThreadsDoNotMatter) {
  const Gradients expected = gradients({4});
  const Gradients sequence_first = gradients({4}, {"dataset_config.data_layout=SBH"});
  EXPECT_NEAR(sequence_first.result.loss, expected.result.loss, 1e-6 * expected.result.loss);
  testing::expect_states_close(sequence_first.tensors, expected.tensors, 5e-6);
  const int threads = num_threads();
  set_num_threads(threads == 1 ? 2 : 1);
  const Gradients other = gradients({4});
  set_num_threads(threads);
  EXPECT_NEAR(other.result.loss, expected.result.loss, 1e-6 * expected.result.loss);
  testing::expect_states_close(other.tensors, expected.tensors, 5e-6);
}

TEST_P(ModelDropout, ActsInTrainingOnlyAndDiffersBetweenSteps) {
  const Trainer trainer(GetParam());
  Overrides without = GetParam();
  without.insert(without.end(),
                 {"model_config.hidden_dropout=0", "model_config.attention_dropout=0"});
  const Trainer plain(without);
  const data::Batch batch = make_batch(trainer.config, 2);
  const auto loss = [&](const Trainer& t) {
    return t.model->forward(to_model_input(batch)).loss.item();
  };
  set_samples(0, batch.sample_ids);
  const double first = loss(trainer);
  EXPECT_EQ(loss(trainer), first);
  set_samples(1, batch.sample_ids);
  EXPECT_NE(loss(trainer), first);
  trainer.model->eval();
  plain.model->eval();
  EXPECT_NE(loss(trainer), first);
  EXPECT_EQ(loss(trainer), loss(plain));
  plain.model->train();
  EXPECT_EQ(loss(trainer), loss(plain));
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         ModelDropout,
                         ::testing::Values(Overrides{kHidden},
                                           Overrides{kAttention},
                                           Overrides{kHidden, kAttention,
                                                     "model_config.position_embedding_type=rope",
                                                     "model_config.window_size=[3, 0]",
                                                     "model_config.group_query_attention=True",
                                                     "model_config.num_query_groups=2"}));

TEST(AttentionDropout, MasksOfTheDataGoWithTheirRows) {
  // Attention dropout works run by run of sample indices, masks included.
  Trainer trainer({kAttention});
  testing::jitter(*trainer.model);
  data::Batch batch = make_batch(trainer.config, 3);
  batch.document_starts = {{2}, {}, {5}};
  batch.sample_ids = {4, 9, 10};
  batch.labels.clear();
  set_samples(0, batch.sample_ids);
  const Tensor together = trainer.model->forward(to_model_input(batch)).logits;
  for (int64_t row = 0; row < 3; ++row) {
    data::Batch one = batch;
    one.batch = 1;
    const auto part = [&](const auto& values) {
      return std::decay_t<decltype(values)>(values.begin() + row * batch.seq,
                                            values.begin() + (row + 1) * batch.seq);
    };
    one.tokens = part(batch.tokens);
    one.loss_mask = part(batch.loss_mask);
    one.document_starts = {batch.document_starts[static_cast<size_t>(row)]};
    set_samples(0, {batch.sample_ids[static_cast<size_t>(row)]});
    EXPECT_LE(distance(trainer.model->forward(to_model_input(one)).logits,
                       together.slice(0, row, row + 1)),
              2e-6);
  }
}

}  // namespace
}  // namespace tapestry
