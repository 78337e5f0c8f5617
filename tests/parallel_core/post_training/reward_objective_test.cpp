#include "parallel_core/post_training/reward/reward_objective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/post_training/reward/last_token.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::post_training {
namespace reward_objective_test {
namespace {

using tapestry::testing::joined;
using tapestry::testing::Overrides;
using tapestry::testing::Reference;
using tapestry::testing::reference_run;
using tapestry::testing::RunOptions;
using tapestry::testing::small_config;
using tapestry::testing::train_model;
using ::testing::HasSubstr;

// -- the loss
// --------------------------------------------------------------------------------------

TEST(RewardLoss, IsTheFormulaAndItsDerivatives) {
  for (const double chosen : {-3.0, 0.2, 5.0}) {
    for (const double rejected : {-2.0, 0.7}) {
      for (const double margin : {0.0, 0.4}) {
        const double centering = 0.01;
        const auto loss = [&](double c, double r) {
          return -std::log(1 / (1 + std::exp(-(c - r - margin)))) + centering * (c + r) * (c + r);
        };
        const RewardLoss found = reward_loss(chosen, rejected, margin, centering);
        EXPECT_NEAR(found.value, loss(chosen, rejected), 1e-12);
        const double h = 1e-5;
        EXPECT_NEAR(found.by_chosen,
                    (loss(chosen + h, rejected) - loss(chosen - h, rejected)) / (2 * h), 1e-8);
        EXPECT_NEAR(found.by_rejected,
                    (loss(chosen, rejected + h) - loss(chosen, rejected - h)) / (2 * h), 1e-8);
      }
    }
  }
}

TEST(RewardLoss, StaysFiniteFarOut) {
  EXPECT_EQ(reward_loss(-1000, 1000, 0, 0).value, 2000);
  EXPECT_EQ(reward_loss(-1000, 1000, 0, 0).by_chosen, -1);
  EXPECT_EQ(reward_loss(1000, -1000, 0, 0).value, 0);
  EXPECT_EQ(reward_loss(1000, -1000, 0, 0).by_rejected, 0);
}

TEST(JudgedToken, IsTheLastOneThatIsNotPadding) {
  const auto judged = [](const std::vector<int32_t>& ids, int64_t pad) {
    return judged_token(std::span<const int32_t>(ids), pad);
  };
  EXPECT_EQ(judged({5, 6, 7}, -1), 2);
  EXPECT_EQ(judged({5, 6, 7}, 9), 2);
  EXPECT_EQ(judged({5, 9, 6, 9, 9}, 9), 2);
  EXPECT_EQ(judged({9, 9}, 9), 0);
}

// -- the objective
// ---------------------------------------------------------------------------------

constexpr int64_t kPad = 30;
constexpr int64_t kPairs = 8;
// Rows are as long in every layout.
constexpr RowRoom kRoom = {.seq_length = 16, .unit = 16, .pad_id = kPad};

const Overrides kScored = {"model_config.score_head=True", "model_config.seq_length=16",
                           "optimizer_config.eps=0.001"};

// Texts of 1 to 7 tokens, some of which end with the pad id.
std::shared_ptr<const TaskExamples> examples() {
  auto made = std::make_shared<TaskExamples>();
  made->sequences = SequenceSet(2);
  for (int32_t i = 0; i < 2 * kPairs; ++i) {
    std::vector<int32_t> ids;
    for (int32_t t = 0; t <= (i * 5) % 7; ++t) {
      ids.push_back((i * 11 + t * t + 3) % static_cast<int32_t>(kPad));
    }
    if (i % 3 == 0) {
      ids.push_back(static_cast<int32_t>(kPad));
    }
    made->sequences.add({}, ids);
  }
  made->train_units = kPairs;
  for (int64_t u = 0; u < kPairs; ++u) {
    made->margins.push_back(0.1 * static_cast<double>(u % 3));
  }
  return made;
}

// A pair, whatever micro-batch it belongs to.
data::Batch one_pair(const AllConfig& /*config*/, int64_t first_sample) {
  static const auto& all = *new std::shared_ptr<const TaskExamples>(examples());
  const int64_t unit = first_sample / 2 % kPairs;
  return pack_sequences(all->sequences, std::array{2 * unit, 2 * unit + 1}, kRoom);
}

AllConfig centred(const Overrides& overrides) {
  AllConfig config = small_config(overrides);
  config.post_training_config.center_rewards_coefficient = 0.05;
  return config;
}

RunOptions with_objective() {
  return {.make = one_pair, .objective = [] {
            return std::make_unique<RewardObjective>(centred({}), examples(), kPad);
          }};
}

struct Layout {
  std::string name;
  ModelParallelSizes sizes;
  int ranks = 1;
  Overrides overrides = {};
};

class RewardInEveryLayout : public ::testing::TestWithParam<Layout> {
 protected:
  static void expect_same_run(const Overrides& model) {
    const Layout& layout = GetParam();
    const Overrides overrides = joined(kScored, model);
    const RunOptions options = with_objective();
    const Reference& single = reference_run(overrides, options, "reward");
    const AllConfig config = small_config(joined(overrides, layout.overrides));
    EXPECT_TRUE(config.unsupported.empty());
    tapestry::testing::run_parallel(layout.ranks, layout.sizes, [&] {
      tapestry::testing::expect_same_run(train_model(config, single.start, options), single.run,
                                         single.bounds);
    });
  }
};

TEST_P(RewardInEveryLayout, TrainsLikeOneProcess) {
  expect_same_run({});  // one matrix for table and output, were there one
  expect_same_run(tapestry::testing::kLlama);
}

const std::string kTensor = "parallel_config.tensor_model_parallel_size=2";
const std::string kPipeline = "parallel_config.pipeline_model_parallel_size=2";
const std::string kContext = "parallel_config.context_parallel_size=2";
const std::string kSequence = "parallel_config.sequence_parallel=True";
const std::string kSequenceFirst = "dataset_config.data_layout=SBH";

INSTANTIATE_TEST_SUITE_P(
    Reward,
    RewardInEveryLayout,
    ::testing::Values(Layout{"sbh", {}, 1, {kSequenceFirst}},
                      Layout{"dp2", {}, 2},
                      Layout{"dp2_z3", {}, 2, {"parallel_config.zero_level=z3"}},
                      Layout{"tp2", {.tensor_model_parallel_size = 2}, 2, {kTensor}},
                      Layout{"tp2_sp", {.tensor_model_parallel_size = 2}, 2, {kTensor, kSequence}},
                      Layout{"tp2_sp_sbh",
                             {.tensor_model_parallel_size = 2},
                             2,
                             {kTensor, kSequence, kSequenceFirst}},
                      Layout{"pp2", {.pipeline_model_parallel_size = 2}, 2, {kPipeline}},
                      Layout{"cp2", {.context_parallel_size = 2}, 2, {kContext}},
                      Layout{"cp2_tp2_sp_sbh",
                             {.tensor_model_parallel_size = 2, .context_parallel_size = 2},
                             4,
                             {kContext, kTensor, kSequence, kSequenceFirst}},
                      Layout{"pp2_dp2", {.pipeline_model_parallel_size = 2}, 4, {kPipeline}}),
    [](const ::testing::TestParamInfo<Layout>& info) { return info.param.name; });

// What is measured, by the values that the model gives the texts one by one.
TEST(RewardObjective, MeasuresAllPairsOfTheStep) {
  const auto all = examples();
  tapestry::testing::Trainer trainer(centred(kScored), tapestry::testing::moved_weights(kScored));
  const auto reward_of = [&](int64_t number) {
    const auto ids = all->sequences.ids(number);
    const NoGradGuard guard;
    const TokenScoresRequest request = {.values = true};
    ModelInput input;
    input.tokens = tensor(std::vector<int64_t>(ids.begin(), ids.end()), {1, std::ssize(ids)});
    input.scores = &request;
    const Tensor values = trainer.model->forward(input).scores->values;
    EXPECT_EQ(values.shape(), input.tokens.shape());
    return static_cast<double>(values.data<float>()[judged_token(ids, kPad)]);
  };
  double loss = 0;
  double least = 1e9;
  double right = 0;
  double lead = 0;
  double tokens = 0;
  for (int64_t unit = 0; unit < 3; ++unit) {
    const double chosen = reward_of(2 * unit);
    const double rejected = reward_of(2 * unit + 1);
    const double margin = all->margins[static_cast<size_t>(unit)];
    loss +=
        (std::log1p(std::exp(rejected + margin - chosen)) + 0.05 * std::pow(chosen + rejected, 2)) /
        3;
    least = std::min({least, chosen, rejected});
    right += chosen > rejected ? 1.0 / 3 : 0;
    lead += (chosen - rejected) / 3;
    tokens += static_cast<double>(all->sequences.ids(2 * unit).size() +
                                  all->sequences.ids(2 * unit + 1).size());
  }
  RewardObjective objective(trainer.config, all, kPad);
  trainer.cell.set_objective(&objective);
  const StepResult result =
      trainer.cell({pack_sequences(all->sequences, std::array<int64_t, 4>{0, 2, 1, 3}, kRoom),
                    one_pair(trainer.config, 4)});
  EXPECT_NEAR(result.loss, loss, 1e-5);
  const std::map<std::string, double> task(result.task.begin(), result.task.end());
  EXPECT_NEAR(task.at("min_reward"), least, 1e-5);
  EXPECT_NEAR(task.at("accuracy"), right, 1e-12);
  EXPECT_NEAR(task.at("margin"), lead, 1e-5);
  EXPECT_EQ(task.at("num_tokens"), tokens);
  EXPECT_LE(task.at("min_reward"), task.at("mean_reward"));
  EXPECT_LE(task.at("mean_reward"), task.at("max_reward"));
}

TEST(ScoreHead, IsAskedForNothingButValues) {
  const AllConfig config = small_config(kScored);
  const auto model = get_model(config);
  ModelInput input = to_model_input(tapestry::testing::make_batch(config, 1));
  const auto error = [&] { return message_of<ValueError>([&] { model->forward(input); }); };
  EXPECT_THAT(error(), HasSubstr("score_head"));
  input.labels = {};
  EXPECT_THAT(error(), HasSubstr("score_head"));
  const TokenScoresRequest log_probs;
  input.scores = &log_probs;
  EXPECT_THAT(error(), HasSubstr("score_head"));

  const TokenScoresRequest values = {.values = true};
  input.scores = &values;
  const auto language_model = get_model(small_config());
  input.tokens = input.tokens.slice(1, 0, 8);
  EXPECT_THAT(message_of<ValueError>([&] { language_model->forward(input); }),
              HasSubstr("score_head"));
}

}  // namespace
}  // namespace reward_objective_test
}  // namespace tapestry::post_training
