// What a model tells of single tokens (ModelInput::scores): against its logits, and trained on in
// every layout against one process.
#include "parallel_core/pipeline_parallel/token_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/tensor/error.h"
#include "parallel_core/transformer/activation_recorder.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace token_scores_test {
namespace {

using testing::distance;
using testing::joined;
using testing::kDropout;
using testing::make_batch;
using testing::Overrides;
using testing::Reference;
using testing::reference_run;
using testing::run_parallel;
using testing::RunDistances;
using testing::RunOptions;
using testing::small_config;
using testing::State;
using testing::train_model;

const std::string kModel = "model_config.";
const Overrides kLlama = joined(testing::kLlama, {kModel + "seq_length=16"});
const Overrides kGpt2 = {kModel + "seq_length=16"};
const Overrides kBounded = {kModel + "logit_multiplier=1.7", kModel + "logit_softcap=1.5"};
const TokenScoresRequest kEverything = {.temperature = 0.7,
                                        .entropy = true,
                                        .logit_means = true,
                                        .likeliest = true,
                                        .square_sums = true};

// -- one process, against the logits
// ---------------------------------------------------------------

struct Expected {
  Tensor log_probs, entropy, logit_means, likeliest, square_sums;
};

// In float64 and elementary operations, from logits [B, S, V].
Expected scores_of(const Tensor& logits, const ModelInput& input, double temperature) {
  const Tensor x = logits.to(kFloat64);
  const Tensor log_p = log_softmax(x / temperature, -1);
  const Tensor p = exp(log_p);
  const auto counted = [&](const Tensor& t) {
    return input.loss_mask.defined() ? t * gt(input.loss_mask, 0).to(kFloat64) : t;
  };
  return {.log_probs = counted(gather(log_p, -1, input.labels.unsqueeze(-1)).squeeze(-1)),
          .entropy = counted(sum(p * log_p, {-1}) * -1.0),
          .logit_means = counted(mean(x, {-1})),
          .likeliest = counted(eq(argmax(x, -1), input.labels).to(kFloat64)),
          .square_sums = counted(log(sum(p * p, {-1})))};
}

Tensor weights_like(const Tensor& x, uint64_t stream) {
  return normal(0, 1, x.shape(), kFloat64, RandomKey{3, stream, 0});
}

// Values, and the gradients of all parameters of weighed log-probabilities and entropies.
void expect_scores_of_logits(const Overrides& overrides, bool full_mask = false) {
  const AllConfig config = small_config(overrides);
  const auto model = get_model(config);
  testing::jitter(*model, 0.2);
  ModelInput input = to_model_input(make_batch(config, 3, 0, full_mask));
  if (full_mask) {
    input.loss_mask = {};
  }
  ModelInput plain = input;
  plain.labels = plain.loss_mask = {};
  Tensor logits = model->forward(plain).logits;
  if (config.dataset_config.data_layout == "SBH") {
    logits = logits.transpose(0, 1);
  }
  // The labels of a row are the likeliest tokens.
  input.labels = cat({argmax(logits.slice(0, 0, 1), -1), input.labels.slice(0, 1, 3)});
  input.scores = &kEverything;
  const TokenScores found = model->forward(input).scores.value();
  const Expected expected = scores_of(logits, input, kEverything.temperature);
  // Sums of 31 numbers around 3.
  constexpr double kRounding = 16 * 0x1p-24;
  EXPECT_LE(distance(found.log_probs, expected.log_probs), kRounding);
  EXPECT_LE(distance(found.entropy, expected.entropy), kRounding);
  EXPECT_LE(distance(found.logit_means, expected.logit_means), kRounding);
  EXPECT_EQ(distance(found.likeliest, expected.likeliest), 0);
  EXPECT_GT(sum(found.likeliest).item(), 0);
  EXPECT_LE(distance(found.square_sums, expected.square_sums), kRounding);
  EXPECT_FALSE(found.logit_means.requires_grad() || found.likeliest.requires_grad() ||
               found.square_sums.requires_grad());
  const auto gradients = [&](const Tensor& log_probs, const Tensor& entropy) {
    for (const auto& entry : model->named_parameters()) {
      entry.parameter->set_grad({});
    }
    (sum(log_probs.to(kFloat64) * weights_like(log_probs, 1)) +
     sum(entropy.to(kFloat64) * weights_like(entropy, 2)))
        .backward();
    State out;
    for (const auto& entry : model->named_parameters()) {
      out[entry.name] = dense_copy(entry.parameter->grad());
    }
    return out;
  };
  const State exact = gradients(expected.log_probs, expected.entropy);
  testing::expect_states_close(gradients(found.log_probs, found.entropy), exact, 1e-5);
}

TEST(TokenScoresOfModel, AreThoseOfItsLogits) {
  expect_scores_of_logits(kGpt2);
  expect_scores_of_logits(kLlama);
  expect_scores_of_logits(kLlama, /*full_mask=*/true);
  expect_scores_of_logits(joined(kLlama, {"dataset_config.data_layout=SBH"}));
  expect_scores_of_logits(joined(kLlama, kBounded));
}

TEST(TokenScoresOfModel, RecordersSeeTheLogits) {
  const AllConfig config = small_config(kGpt2);
  const auto model = get_model(config);
  ModelInput input = to_model_input(make_batch(config, 2));
  input.scores = &kEverything;
  const ActivationRecorder recorder;
  const Tensor log_probs = model->forward(input).scores->log_probs;
  input.labels = input.loss_mask = {};
  input.scores = nullptr;
  const Tensor logits = model->forward(input).logits.slice(0, 0, 1).detach();
  EXPECT_EQ(distance(recorder.values().at("logits").view(logits.shape()), logits), 0);
  EXPECT_TRUE(log_probs.requires_grad());
}

TEST(TokenScoresOfModel, OnlyWhatIsAskedFor) {
  const AllConfig config = small_config(kGpt2);
  const auto model = get_model(config);
  ModelInput input = to_model_input(make_batch(config, 2));
  TokenScoresRequest request;
  input.scores = &request;
  const ModelOutput out = model->forward(input);
  EXPECT_FALSE(out.loss.defined() || out.logits.defined() || out.hidden.defined());
  const TokenScores& scores = out.scores.value();
  EXPECT_TRUE(scores.log_probs.requires_grad());
  EXPECT_EQ(scores.log_probs.dtype(), kFloat32);
  EXPECT_FALSE(scores.entropy.defined() || scores.logit_means.defined() ||
               scores.likeliest.defined() || scores.square_sums.defined());
  request.gradients = false;
  const TokenScores same = model->forward(input).scores.value();
  EXPECT_FALSE(same.log_probs.requires_grad());
  EXPECT_TRUE(testing::same_bits(same.log_probs, scores.log_probs.detach()));
  // Of other labels nothing is said, whatever they are.
  input.loss_mask = zeros(input.tokens.shape());
  input.labels = full(input.tokens.shape(), 1000, kInt64);
  EXPECT_EQ(testing::largest(model->forward(input).scores->log_probs), 0);
  input.labels = {};
  EXPECT_THAT(message_of<ValueError>([&] { model->forward(input); }),
              ::testing::HasSubstr("scores"));
}

// Knows nothing of scores.
class Deaf final : public ParallelModel {
 public:
  std::string type_name() const override { return "Deaf"; }
  ModelOutput forward(const ModelInput& /*input*/) override { return {}; }
  const PipelineStage& stage() const override { return stage_; }
  Shape hidden_shape(int64_t /*batch*/, int64_t /*seq*/) const override { return {}; }
  DType hidden_dtype() const override { return kFloat32; }

 private:
  PipelineStage stage_;
};

TEST(TokenScoresOfModel, AModelThatTellsNoneIsNamed) {
  Deaf model;
  const std::vector<data::Batch> batches = {make_batch(small_config(), 1)};
  const auto finish = [](int64_t, ModelOutput&) { return StageOutput{}; };
  const TokenScoresRequest request;
  EXPECT_NO_THROW(pipeline_work(model, batches, finish));
  EXPECT_THAT(message_of<ValueError>([&] { pipeline_work(model, batches, finish, &request); }),
              ::testing::AllOf(::testing::HasSubstr("post_training_config.task"),
                               ::testing::HasSubstr("Deaf")));
}

// -- every layout
// ----------------------------------------------------------------------------------

// Of log-probabilities and entropies together, not linear in either, each token with a weight of
// its own.
class CurvedObjective final : public StepObjective {
 public:
  void begin_step(ParallelModel& /*model*/,
                  int64_t /*step*/,
                  const std::vector<data::Batch>& /*micro_batches*/,
                  bool /*training*/) override {}
  const TokenScoresRequest* scores() const override { return &kEverything; }
  Tensor part(int64_t /*micro_batch*/, const data::Batch& batch, ModelOutput& output) override {
    const TokenScores& s = output.scores.value();
    const Shape whole = {batch.batch, batch.seq};
    EXPECT_EQ(s.log_probs.shape(), whole);
    likeliest_ += sum(s.likeliest).item();
    std::vector<float> weights;
    for (size_t i = 0; i < batch.labels.size(); ++i) {
      weights.push_back(static_cast<float>((batch.labels[i] + batch.tokens[i]) % 7 - 2) / 64);
    }
    // What has no gradient weighs as well, so that it has to be the same.
    const Tensor weight =
        tensor(weights, whole) * (s.likeliest + 1.0) * (s.logit_means + 1.0) * s.square_sums;
    return sum(weight * (exp(s.log_probs * 0.3) + s.log_probs * s.entropy * 0.1));
  }
  NamedValues finish_step() override { return {}; }

  double likeliest() const { return likeliest_; }

 private:
  double likeliest_ = 0;
};

// Otherwise the layouts would not be compared in this.
TEST(TokenScoresOfModel, SomeLabelsAreLikeliest) {
  CurvedObjective objective;
  testing::Trainer trainer(small_config(kGpt2), testing::moved_weights(kGpt2));
  trainer.cell.set_objective(&objective);
  for (int64_t i = 0; i < 4; ++i) {
    trainer.cell({testing::two_rows(trainer.config, 2 * i)});
  }
  EXPECT_GT(objective.likeliest(), 0);
}

struct Layout {
  int context = 1;
  int tensor = 1;
  int pipeline = 1;
  int data = 1;
  bool sequence_parallel = false;
  bool sequence_first = false;
  Overrides more = {};

  int ranks() const { return context * tensor * pipeline * data; }
};
std::string text_of(const Layout& l) {
  std::string text = concat("cp", l.context, "_tp", l.tensor, "_pp", l.pipeline, "_dp", l.data);
  text += l.sequence_parallel ? "_sp" : "";
  text += l.sequence_first ? "_sbh" : "";
  for (const std::string& more : l.more) {
    const size_t begin = more.find('.') + 1;
    text += "_" + more.substr(begin, more.find('=') - begin);
  }
  return text;
}
std::ostream& operator<<(std::ostream& out, const Layout& l) { return out << text_of(l); }

class ScoresInEveryLayout : public ::testing::TestWithParam<Layout> {
 protected:
  // With this eps an element whose gradient is nothing but rounding stays where it is.
  static void expect_same_run(const Overrides& overrides_) {
    const Layout& l = GetParam();
    const Overrides overrides = joined(overrides_, {"optimizer_config.eps=0.001"});
    const RunOptions options = {.objective = [] { return std::make_unique<CurvedObjective>(); }};
    const Reference& single = reference_run(overrides, options, "scores");
    const std::string parallel = "parallel_config.";
    const AllConfig config = small_config(
        joined(joined(overrides, l.more),
               {concat(parallel, "context_parallel_size=", l.context),
                concat(parallel, "tensor_model_parallel_size=", l.tensor),
                concat(parallel, "sequence_parallel=", l.sequence_parallel ? "True" : "False"),
                concat(parallel, "pipeline_model_parallel_size=", l.pipeline),
                concat("dataset_config.data_layout=", l.sequence_first ? "SBH" : "BSH")}));
    EXPECT_TRUE(config.unsupported.empty());
    run_parallel(l.ranks(),
                 {.tensor_model_parallel_size = l.tensor,
                  .pipeline_model_parallel_size = l.pipeline,
                  .context_parallel_size = l.context},
                 [&] {
                   testing::expect_same_run(train_model(config, single.start, options), single.run,
                                            single.bounds);
                 });
  }
};

TEST_P(ScoresInEveryLayout, TrainLikeOneProcess) {
  expect_same_run(kGpt2);
  expect_same_run(joined(kLlama, kDropout));
}

// Weights of layers that are left out of the loss have no gradient.
TEST_P(ScoresInEveryLayout, LayersAheadHaveNoPart) {
  expect_same_run(joined(kLlama, {kModel + "mtp_num_layers=1"}));
}

TEST_P(ScoresInEveryLayout, OfBoundedLogits) { expect_same_run(joined(kLlama, kBounded)); }

TEST_P(ScoresInEveryLayout, Bfloat16) {
  expect_same_run(joined(kLlama, {kModel + "compute_dtype=bfloat16"}));
}

INSTANTIATE_TEST_SUITE_P(
    TokenScores,
    ScoresInEveryLayout,
    ::testing::Values(Layout{.sequence_first = true},
                      Layout{.tensor = 2},
                      Layout{.tensor = 2, .sequence_parallel = true},
                      Layout{.tensor = 4, .sequence_parallel = true, .sequence_first = true},
                      Layout{.context = 2},
                      Layout{.context = 4, .sequence_first = true},
                      Layout{.context = 2, .tensor = 2, .sequence_parallel = true},
                      Layout{.pipeline = 2},
                      Layout{.context = 2, .pipeline = 2},
                      Layout{.data = 2},
                      Layout{.data = 2, .more = {"parallel_config.zero_level=z3"}}),
    [](const ::testing::TestParamInfo<Layout>& info) { return text_of(info.param); });

}  // namespace
}  // namespace token_scores_test
}  // namespace tapestry
