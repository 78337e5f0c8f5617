// Divergences from a teacher: formulas by hand, ops against elementary ones, and training in every
// layout against one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "parallel_core/post_training/distil/distil_objective.h"
#include "parallel_core/transformer/linear_divergence.h"
#include "parallel_core/transformer/top_divergence.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace distil_losses_test {
namespace {

using post_training::DistilObjective;
using post_training::DistilOptions;
using post_training::ModelTeacher;
using post_training::Teacher;
using testing::joined;
using testing::Overrides;
using testing::Reference;
using testing::reference_run;
using testing::run_parallel;
using testing::small_config;
using testing::train_model;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<float> as_floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

double top_value(const std::vector<double>& own,
                 const std::vector<double>& teacher,
                 const TopDivergenceOptions& options) {
  std::vector<float> gradient(own.size());
  return top_divergence(own, as_floats(teacher), options, gradient);
}

// -- likeliest tokens
// ---------------------------------------------------------------------------------

TEST(TopDivergence, ForwardWithTheRestByHand) {
  // p = (1/2, 1/8, rest 3/8), q = (1/4, 1/4, rest 1/2)
  const std::vector<double> own = {std::log(0.5), std::log(0.125)};
  const std::vector<double> teacher = {std::log(0.25), std::log(0.25)};
  const double expected =
      0.25 * std::log(0.25 / 0.5) + 0.25 * std::log(0.25 / 0.125) + 0.5 * std::log(0.5 / 0.375);
  EXPECT_NEAR(top_value(own, teacher, {.beta = 0, .vocabulary = 9}), expected, 1e-7);
}

TEST(TopDivergence, WithoutTheRestBothAreWhatIsKnown) {
  const std::vector<double> own = {std::log(0.5), std::log(0.125)};      // 4/5, 1/5
  const std::vector<double> teacher = {std::log(0.25), std::log(0.25)};  // 1/2, 1/2
  const double forward = 0.5 * std::log(0.5 / 0.8) + 0.5 * std::log(0.5 / 0.2);
  const double reverse = 0.8 * std::log(0.8 / 0.5) + 0.2 * std::log(0.2 / 0.5);
  EXPECT_NEAR(top_value(own, teacher, {.beta = 0, .add_tail = false, .vocabulary = 9}), forward,
              1e-7);
  EXPECT_NEAR(top_value(own, teacher, {.beta = 1, .add_tail = false, .vocabulary = 9}), reverse,
              1e-7);
  EXPECT_EQ(top_value({-1.0}, {-2.0}, {.beta = 0, .add_tail = false, .vocabulary = 9}), 0);
}

TEST(TopDivergence, AWholeVocabularyHasNoRest) {
  const std::vector<double> own = {std::log(0.75), std::log(0.25)};
  const std::vector<double> teacher = {std::log(0.5), std::log(0.5)};
  const double expected = 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(0.5 / 0.25);
  EXPECT_NEAR(top_value(own, teacher, {.beta = 0, .vocabulary = 2}), expected, 1e-7);
}

TEST(TopDivergence, WhatIsNotKnownIsLeftOut) {
  const std::vector<double> own = {std::log(0.5), -0.1, std::log(0.125)};
  const std::vector<double> teacher = {std::log(0.25), -kInfinity, std::log(0.25)};
  for (const double beta : {0.0, 0.3, 1.0}) {
    const TopDivergenceOptions options = {.beta = beta, .vocabulary = 9};
    EXPECT_EQ(top_value(own, teacher, options),
              top_value({own[0], own[2]}, {teacher[0], teacher[2]}, options));
  }
  EXPECT_EQ(top_value(own, {-kInfinity, -kInfinity, -kInfinity}, {.vocabulary = 9}), 0);
}

TEST(TopDivergence, GradientIsThatOfDifferences) {
  const std::vector<double> own = {std::log(0.4), std::log(0.2), std::log(0.05)};
  const std::vector<double> teacher = {std::log(0.3), std::log(0.25), std::log(0.15)};
  for (const bool tail : {true, false}) {
    for (const double beta : {0.0, 0.3, 1.0}) {
      const TopDivergenceOptions options = {.beta = beta, .add_tail = tail, .vocabulary = 9};
      std::vector<float> gradient(3);
      top_divergence(own, as_floats(teacher), options, gradient);
      for (size_t j = 0; j < own.size(); ++j) {
        constexpr double kStep = 1e-5;
        std::vector<double> above = own;
        std::vector<double> below = own;
        above[j] += kStep;
        below[j] -= kStep;
        const double slope =
            (top_value(above, teacher, options) - top_value(below, teacher, options)) / (2 * kStep);
        EXPECT_NEAR(gradient[j], slope, 1e-6) << tail << " " << beta << " " << j;
      }
    }
  }
}

// -- ops, in one process
// ------------------------------------------------------------------------------

constexpr int64_t kRows = 7;
constexpr int64_t kHidden = 5;
constexpr int64_t kVocabulary = 13;

Tensor random(const Shape& shape, uint64_t stream, double scale = 1) {
  return normal(0, scale, shape, kFloat64, RandomKey{11, stream, 0});
}

HeadRows rows_of(const Tensor& logits) {
  return {.count = logits.size(0),
          .logits = [logits](int64_t begin, int64_t end) { return logits.slice(0, begin, end); }};
}

Tensor labels_of_rows() {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < kRows; ++i) {
    labels.push_back(i * 5 % kVocabulary);
  }
  return tensor(labels, {kRows});
}

// The generalised divergence in elementary operations.
Tensor elementary(const Tensor& x, const Tensor& y, double temperature, double beta) {
  const Tensor s = log_softmax(x / temperature, -1);
  const Tensor t = log_softmax(y / temperature, -1);
  if (beta == 0) {
    return sum(exp(t) * (t - s), {-1});
  }
  if (beta == 1) {
    return sum(exp(s) * (s - t), {-1});
  }
  const Tensor m = log(exp(s) * (1 - beta) + exp(t) * beta);
  return sum(exp(t) * (t - m), {-1}) * beta + sum(exp(s) * (s - m), {-1}) * (1 - beta);
}

Tensor elementary_top(
    const Tensor& x, const TopLogProbs& top, double temperature, double beta, bool tail) {
  Tensor s = gather(log_softmax(x / temperature, -1), -1, top.ids.to(kInt64));
  Tensor t = top.log_probs.to(kFloat64);
  const auto rest = [](const Tensor& l) { return log(sum(exp(l), {-1}, true) * -1.0 + 1.0); };
  if (tail) {
    s = cat({s, rest(s)}, 1);
    t = cat({t, rest(t)}, 1);
  } else {
    s = s - logsumexp(s, {-1}, true);
    t = t - logsumexp(t, {-1}, true);
  }
  return elementary(s, t, 1, beta);  // whose softmax changes nothing
}

struct Results {
  Tensor divergence, log_probs, entropy, dx, dw;
};

template <class F>
Results results_of(const F& f) {
  Tensor x = random({kRows, kHidden}, 1);
  Tensor w = random({kVocabulary, kHidden}, 2, 0.7);
  x.set_requires_grad(true);
  w.set_requires_grad(true);
  LinearDivergence out = f(x, w);
  const Tensor loss =
      sum(out.divergence * random({kRows}, 3)) + sum(out.log_probs * random({kRows}, 4));
  const TensorList d = grad({loss}, {x, w});
  return {out.divergence.detach(), out.log_probs.detach(), out.entropy.detach(), d[0], d[1]};
}

void expect_close(const Results& found, const Results& expected, const std::string& where) {
  const auto close = [&](const Tensor& a, const Tensor& b, const char* what) {
    EXPECT_LE(testing::distance(a.to(kFloat64), b), 3e-6) << where << ": " << what;
  };
  close(found.divergence, expected.divergence, "divergence");
  close(found.log_probs, expected.log_probs, "log-probabilities");
  close(found.entropy, expected.entropy, "entropy");
  close(found.dx, expected.dx, "gradient of hidden");
  close(found.dw, expected.dw, "gradient of the weight");
}

template <class F>
Results elementary_results(double cap, const F& divergence) {
  return results_of([&](const Tensor& x, const Tensor& w) {
    const Tensor products = linear(x, w);
    const Tensor logits = cap > 0 ? soft_cap(products, 1.3, cap) : products;
    const Tensor log_p = log_softmax(logits, -1);
    return LinearDivergence{
        .divergence = divergence(logits),
        .log_probs = gather(log_p, -1, labels_of_rows().unsqueeze(-1)).squeeze(-1),
        .entropy = sum(exp(log_p) * log_p, {-1}) * -1.0};
  });
}

TEST(LinearDivergence, FromAModelIsThatOfElementaryOps) {
  const Tensor teacher = random({kRows, kVocabulary}, 5, 1.5);
  for (const double cap : {0.0, 2.0}) {
    for (const double beta : {0.0, 0.3, 0.5, 1.0}) {
      for (const double temperature : {1.0, 0.6, 2.0}) {
        const LinearDivergenceOptions options = {.temperature = temperature,
                                                 .beta = beta,
                                                 .vocabulary = kVocabulary,
                                                 .chunk_rows = 3,
                                                 .logit_scale = cap > 0 ? 1.3 : 1,
                                                 .logit_cap = cap};
        const Results found = results_of([&](const Tensor& x, const Tensor& w) {
          return linear_divergence(x, w, labels_of_rows(), rows_of(teacher), options, {});
        });
        const Results expected = elementary_results(cap, [&](const Tensor& logits) {
          return elementary(logits, teacher, temperature, beta);
        });
        expect_close(found, expected, concat(cap, " ", beta, " ", temperature));
      }
    }
  }
}

// The k best of a distribution.
TopLogProbs best_of(const Tensor& logits, int64_t k, double temperature) {
  const ValuesAndIndices best = topk(log_softmax(logits / temperature, -1), k, -1);
  return {.ids = best.indices.to(kInt32), .log_probs = best.values.to(kFloat32)};
}

TEST(LinearDivergence, FromLikeliestTokensIsThatOfElementaryOps) {
  const Tensor teacher = random({kRows, kVocabulary}, 5, 1.5);
  for (const bool tail : {true, false}) {
    for (const double beta : {0.0, 0.3, 1.0}) {
      for (const double temperature : {1.0, 2.0}) {
        const TopLogProbs top = best_of(teacher, 4, temperature);
        const Results found = results_of([&](const Tensor& x, const Tensor& w) {
          return linear_divergence(x, w, labels_of_rows(), top,
                                   {.temperature = temperature,
                                    .beta = beta,
                                    .add_tail = tail,
                                    .vocabulary = kVocabulary,
                                    .chunk_rows = 3},
                                   {});
        });
        const Results expected = elementary_results(0, [&](const Tensor& logits) {
          return elementary_top(logits, top, temperature, beta, tail);
        });
        expect_close(found, expected, concat(tail, " ", beta, " ", temperature));
      }
    }
  }
}

TEST(LinearDivergence, AllTokensAreTheModel) {
  const Tensor teacher = random({kRows, kVocabulary}, 5, 1.5);
  for (const double beta : {0.0, 0.3, 1.0}) {
    const LinearDivergenceOptions options = {
        .temperature = 1.4, .beta = beta, .vocabulary = kVocabulary};
    const auto found = [&](const DivergenceTarget& target) {
      return results_of([&](const Tensor& x, const Tensor& w) {
        return linear_divergence(x, w, labels_of_rows(), target, options, {});
      });
    };
    expect_close(found(best_of(teacher, kVocabulary, 1.4)), found(rows_of(teacher)),
                 concat("beta ", beta));
  }
}

TEST(LinearDivergence, SaysWhatIsWrong) {
  const Tensor x = random({kRows, kHidden}, 1).to(kFloat32);
  const Tensor w = random({kVocabulary, kHidden}, 2).to(kFloat32);
  const Tensor logits = random({kRows, kVocabulary}, 5).to(kFloat32);
  const auto message = [&](const DivergenceTarget& target, const LinearDivergenceOptions& options) {
    return message_of<ValueError>(
        [&] { linear_divergence(x, w, labels_of_rows(), target, options, {}); });
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message(rows_of(logits), {.temperature = 0, .vocabulary = kVocabulary}),
              HasSubstr("temperature must be above 0, got 0"));
  EXPECT_THAT(message(rows_of(logits), {.beta = 1.5, .vocabulary = kVocabulary}),
              HasSubstr("beta must lie in [0, 1], got 1.5"));
  EXPECT_THAT(message(rows_of(logits.slice(0, 0, 3)), {.vocabulary = kVocabulary}),
              HasSubstr("the teacher has 3 rows, the student 7"));
  EXPECT_THAT(message(rows_of(logits.slice(1, 0, 4)), {.vocabulary = kVocabulary}),
              HasSubstr("must have the shape of the student's"));
  const TopLogProbs top = {.ids = full({kRows, 1}, kVocabulary, kInt32),
                           .log_probs = full({kRows, 1}, -1, kFloat32)};
  EXPECT_THAT(message_of<IndexError>([&] {
                linear_divergence(x, w, labels_of_rows(), top, {.vocabulary = kVocabulary}, {});
              }),
              HasSubstr("id 13 lies outside the vocabulary of 13"));
}

// -- every layout
// ---------------------------------------------------------------------------------------

// Four tokens a position, one of them perhaps not known, as a function of the position alone.
class MadeUpTeacher final : public Teacher {
 public:
  explicit MadeUpTeacher(int64_t vocabulary) : vocabulary_(vocabulary) {}
  void begin_step(const std::vector<data::Batch>& micro_batches) override {
    micro_batches_ = &micro_batches;
  }
  DivergenceTarget target(int64_t micro_batch,
                          const std::vector<int64_t>& positions) const override {
    const data::Batch& batch = (*micro_batches_)[static_cast<size_t>(micro_batch)];
    const auto count = std::ssize(positions);
    TopLogProbs top = {.ids = empty({count, 4}, kInt32), .log_probs = empty({count, 4}, kFloat32)};
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(positions[static_cast<size_t>(i)]);
      EXPECT_GT(batch.loss_mask[at], 0);
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t id = (batch.labels[at] * 3 + batch.tokens[at] + j * 5) % vocabulary_;
        top.ids.data<int32_t>()[i * 4 + j] = static_cast<int32_t>(id);
        const bool is_known = j < 3 || batch.tokens[at] % 2 == 0;
        top.log_probs.data<float>()[i * 4 + j] =
            is_known ? static_cast<float>(-0.8 - 0.7 * static_cast<double>(j))
                     : static_cast<float>(-kInfinity);
      }
    }
    return top;
  }

 private:
  int64_t vocabulary_;
  const std::vector<data::Batch>* micro_batches_ = nullptr;
};

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
  return text + (l.more.empty() ? "" : "_more");
}

const Overrides kStudent =
    joined(testing::kLlama, {"model_config.seq_length=16", "optimizer_config.eps=0.001"});

// Another model of the same kind, the same in every layout.
testing::State teacher_weights() {
  const auto model = get_model(small_config(kStudent));
  testing::jitter(*model, 0.3);
  return get_logical_state(*model);
}

std::unique_ptr<StepObjective> objective_of(const AllConfig& config,
                                            const DistilOptions& options,
                                            const testing::State* teacher) {
  if (teacher == nullptr) {
    return std::make_unique<DistilObjective>(
        options, std::make_unique<MadeUpTeacher>(config.model_config.vocab_size));
  }
  return std::make_unique<DistilObjective>(
      options, std::make_unique<ModelTeacher>(testing::model_with(config, *teacher)));
}

// As a rank has one at the end of an epoch.
TEST(DistilObjective, AMicroBatchWithoutTokensCountsNothing) {
  const AllConfig config = small_config(kStudent);
  const testing::State start = testing::moved_weights(kStudent);
  const testing::State teacher = teacher_weights();
  const data::Batch batch = testing::two_rows(config, 0);
  data::Batch nothing = testing::two_rows(config, 2);
  std::fill(nothing.loss_mask.begin(), nothing.loss_mask.end(), 0.0F);
  for (const testing::State* weights : {&teacher, static_cast<const testing::State*>(nullptr)}) {
    const auto step = [&](const std::vector<data::Batch>& batches) {
      const auto objective = objective_of(config, {.beta = 0.5, .data_loss_weight = 0.5}, weights);
      testing::Trainer trainer(config, start);
      trainer.cell.set_objective(objective.get());
      return trainer.cell(batches);
    };
    const StepResult alone = step({batch});
    const StepResult both = step({nothing, batch});
    EXPECT_GT(alone.loss, 0);
    EXPECT_NEAR(both.loss, alone.loss, 1e-6 * alone.loss);
    EXPECT_NEAR(both.grad_norm, alone.grad_norm, 1e-5 * alone.grad_norm);
    EXPECT_EQ(step({nothing}).loss, 0);
    EXPECT_EQ(step({nothing}).grad_norm, 0);
  }
}

class DistilInEveryLayout : public ::testing::TestWithParam<Layout> {
 protected:
  static void expect_same_run(const DistilOptions& options,
                              bool from_model,
                              const std::string& name,
                              const Overrides& more = {}) {
    const Layout& l = GetParam();
    const testing::State teacher = from_model ? teacher_weights() : testing::State();
    const testing::State* weights = from_model ? &teacher : nullptr;
    const Overrides overrides = joined(kStudent, more);
    const auto run_options = [&](const AllConfig& config) {
      return testing::RunOptions{.objective = [&config, &options, weights] {
        return objective_of(config, options, weights);
      }};
    };
    const AllConfig one = small_config(overrides);
    const Reference& single = reference_run(overrides, run_options(one), name);
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
                   testing::expect_same_run(train_model(config, single.start, run_options(config)),
                                            single.run, single.bounds);
                 });
  }
};

TEST_P(DistilInEveryLayout, FromAModel) {
  expect_same_run({.temperature = 1.5, .beta = 0.3, .data_loss_weight = 0.25}, true, "between");
  expect_same_run({.beta = 1}, true, "reverse");
}

TEST_P(DistilInEveryLayout, FromLikeliestTokens) {
  expect_same_run({.temperature = 1.5, .beta = 0, .data_loss_weight = 0.25}, false, "forward top");
  expect_same_run({.beta = 0.6, .add_tail = false}, false, "between top");
}

TEST_P(DistilInEveryLayout, OfBoundedLogits) {
  const Overrides bounded = {"model_config.logit_multiplier=1.7", "model_config.logit_softcap=1.5"};
  expect_same_run({.beta = 0}, true, "bounded", bounded);
}

INSTANTIATE_TEST_SUITE_P(
    Distil,
    DistilInEveryLayout,
    ::testing::Values(Layout{.sequence_first = true},
                      Layout{.tensor = 2},
                      Layout{.tensor = 2, .sequence_parallel = true},
                      Layout{.tensor = 4, .sequence_parallel = true, .sequence_first = true},
                      Layout{.context = 2},
                      Layout{.context = 2, .tensor = 2, .sequence_parallel = true},
                      Layout{.pipeline = 2},
                      Layout{.context = 2, .pipeline = 2, .sequence_first = true},
                      Layout{.data = 2},
                      Layout{.data = 2, .more = {"parallel_config.zero_level=z3"}}),
    [](const ::testing::TestParamInfo<Layout>& info) { return text_of(info.param); });

}  // namespace
}  // namespace distil_losses_test
}  // namespace tapestry
