// Completions that a policy samples: the same in every layout, with the log-probabilities that
// training has of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "autograd/kernels/machine/one_order.h"
#include "autograd/tensor/error.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/post_training/objective/completion_scores.h"
#include "parallel_core/post_training/rollouts/policy_sampler.h"
#include "parallel_core/training/ranks/initialize_ranks.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/rank_layouts.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::post_training {
namespace {

using tapestry::testing::joined;
using tapestry::testing::kModel;
using tapestry::testing::llama;
using tapestry::testing::Overrides;
using tapestry::testing::run_parallel;
using tapestry::testing::small_config;
using tapestry::testing::State;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kTask = "post_training_config.";

// A model of bytes that ends texts now and then.
Overrides sampling(const Overrides& more = {}) {
  return joined({llama({kModel + "seq_length=48", kModel + "vocab_size=257"}),
                 {concat(kTask, "task=grpo"), concat(kTask, "data=[prompts.jsonl]"),
                  concat(kTask, "reward_funcs=['length: 5']"), concat(kTask, "num_generations=4"),
                  concat(kTask, "max_completion_length=12"), concat(kTask, "temperature=0.8"),
                  "dataset_config.batch_size=4"},
                 more});
}

const std::vector<std::string> kPrompts = {"one", "a longer one", "x",
                                           "3 + 4 =", "and the last one"};

std::shared_ptr<const TaskExamples> examples_of(const std::vector<std::string>& prompts) {
  auto all = std::make_shared<TaskExamples>();
  for (const std::string& prompt : prompts) {
    all->sequences.add(data::ByteTokenizer().encode(prompt), {});
    all->lines.push_back(nlohmann::ordered_json{{"prompt", prompt}, {"answer", 7}}.dump());
    all->places.push_back({.file = 0, .line = std::ssize(all->lines)});
  }
  all->train_units = std::ssize(prompts);
  return all;
}

std::unique_ptr<PolicySampler> sampler_of(const AllConfig& config,
                                          const std::vector<std::string>& prompts = kPrompts,
                                          const std::vector<std::string>& rewards = {"length: 5"}) {
  SamplerParts parts;
  parts.prompts = examples_of(prompts);
  parts.tokenizer = std::make_shared<data::ByteTokenizer>();
  // One of eight bytes, or the tokenizer's own, ends a text.
  for (int32_t id = 256; id > 0; id -= 8) {
    parts.stop_ids.push_back(id);
  }
  parts.rewards = make_reward_functions(rewards, 20);
  const GenerationPlan plan = {.generation_batch = 16, .steps_per_generation = 2};
  return std::make_unique<PolicySampler>(
      config, plan, RowRoom{.seq_length = config.model_config.seq_length}, std::move(parts));
}

State start_weights_of(const Overrides& overrides) {
  const auto model = get_model(small_config(overrides));
  tapestry::testing::jitter(*model, 0.3);
  return get_logical_state(*model);
}

// Ids, log-probabilities and rewards of a batch.
struct Seen {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<double>> log_probs;
  std::vector<double> rewards;
};

Seen seen_of(const RolloutBatch& batch) {
  Seen seen;
  for (int64_t i = 0; i < batch.completions.size(); ++i) {
    const auto ids = batch.completions.ids(i);
    seen.ids.emplace_back(ids.begin(), ids.end());
    const auto log_probs = batch.old_log_probs.of(i);
    seen.log_probs.emplace_back(log_probs.begin(), log_probs.end());
    EXPECT_EQ(std::ssize(log_probs), batch.completions.completion_tokens(i));
  }
  seen.rewards = batch.rewards.front();
  return seen;
}

double largest_difference(const Seen& a, const Seen& b) {
  double largest = 0;
  for (size_t i = 0; i < a.log_probs.size(); ++i) {
    for (size_t t = 0; t < a.log_probs[i].size(); ++t) {
      largest = std::max(largest, std::abs(a.log_probs[i][t] - b.log_probs[i][t]));
    }
  }
  return largest;
}

// What training has of the batch's completions.
std::vector<std::vector<double>> scored(ParallelModel& model,
                                        const AllConfig& config,
                                        const RolloutBatch& batch) {
  std::vector<int64_t> numbers(static_cast<size_t>(batch.completions.size()));
  std::iota(numbers.begin(), numbers.end(), 0);
  const data::Batch rows =
      pack_sequences(batch.completions, numbers,
                     {.seq_length = config.model_config.seq_length, .unit = model.sequence_unit()});
  std::vector<std::vector<double>> out(numbers.size());
  score_without_gradients(model, {rows}, {.temperature = config.post_training_config.temperature},
                          [&](int64_t /*micro_batch*/, const TokenScores& scores) {
                            for (const CompletionPlace& place : completion_places(rows)) {
                              out[static_cast<size_t>(place.number)] =
                                  values_at(scores.log_probs, place);
                            }
                          });
  return out;
}

TEST(Sampling, ABatchIsAFunctionOfWeightsSeedAndNumber) {
  const AllConfig config = small_config(sampling());
  const State weights = start_weights_of(sampling());
  run_parallel(1, {}, [&] {
    const auto model = tapestry::testing::model_with(config, weights);
    const auto first = sampler_of(config);
    first->set_model(*model);
    const Seen zero = seen_of(first->batch(0));
    const Seen one = seen_of(first->batch(1));
    EXPECT_EQ(seen_of(first->batch(0)).ids, zero.ids) << "kept";
    EXPECT_NE(zero.ids, one.ids);
    const auto again = sampler_of(config);
    again->set_model(*model);
    EXPECT_EQ(seen_of(again->batch(1)).ids, one.ids) << "no batch before it is needed";
    EXPECT_EQ(seen_of(again->batch(1)).log_probs, one.log_probs);
    AllConfig other = config;
    other.training_config.seed += 1;
    const auto reseeded = sampler_of(other);
    reseeded->set_model(*model);
    EXPECT_NE(seen_of(reseeded->batch(0)).ids, zero.ids);
    // Completions of one prompt differ; some end by themselves and some are cut off.
    EXPECT_NE(zero.ids[0], zero.ids[1]);
    const std::vector<bool>& truncated = first->batch(1).truncated;
    EXPECT_GT(std::count(truncated.begin(), truncated.end(), true), 0);
    EXPECT_GT(std::count(truncated.begin(), truncated.end(), false), 0);
  });
}

TEST(Sampling, IsTheSameInEveryLayout) {
  const State weights = start_weights_of(sampling());
  Seen expected;
  run_parallel(1, {}, [&] {
    const AllConfig config = small_config(sampling());
    const auto model = tapestry::testing::model_with(config, weights);
    const auto sampler = sampler_of(config);
    sampler->set_model(*model);
    expected = seen_of(sampler->batch(0));
  });
  const std::string sp = "parallel_config.sequence_parallel=True";
  const std::vector<tapestry::testing::RankLayout> layouts = {
      {2, {}},
      {2, tapestry::testing::tp(2)},
      {2, joined(tapestry::testing::tp(2), {sp})},
      {2, tapestry::testing::pp(2)},
      {2, {"parallel_config.context_parallel_size=2"}},
      {2, tapestry::testing::zero("z3")},
      {4, joined(tapestry::testing::pp(2), {"parallel_config.context_parallel_size=2"})},
      {4, tapestry::testing::tp(2)}};
  for (const auto& layout : layouts) {
    const AllConfig config = small_config(sampling(layout.overrides));
    run_parallel(layout.ranks, model_parallel_sizes(config.parallel_config), [&] {
      const auto model = tapestry::testing::model_with(config, weights);
      const auto gradients = get_data_parallel(config, *model);
      const auto sampler = sampler_of(config);
      sampler->set_model(*model);
      const Seen seen = seen_of(sampler->batch(0));
      EXPECT_EQ(seen.ids, expected.ids) << ::testing::PrintToString(layout.overrides);
      EXPECT_EQ(seen.rewards, expected.rewards);
      EXPECT_LT(largest_difference(seen, expected), 2e-5);
      EXPECT_TRUE(model->is_training());
    });
  }
}

// The sampler's log-probabilities are those that training has, bit for bit.
TEST(Sampling, HasNoMismatch) {
  const State weights = start_weights_of(sampling());
  for (const auto& layout :
       std::vector<tapestry::testing::RankLayout>{{1, {}},
                                                  {2, {}},
                                                  {2, tapestry::testing::tp(2)},
                                                  {1, {kModel + "compute_dtype=bfloat16"}}}) {
    const AllConfig config = small_config(sampling(layout.overrides));
    run_parallel(layout.ranks, model_parallel_sizes(config.parallel_config), [&] {
      const auto model = tapestry::testing::model_with(config, weights);
      const auto sampler = sampler_of(config);
      sampler->set_model(*model);
      const RolloutBatch& batch = sampler->batch(0);
      const OneOrderScope one_order;
      const auto of_training = scored(*model, config, batch);
      for (size_t i = 0; i < of_training.size(); ++i) {
        const auto sampled = batch.old_log_probs.of(static_cast<int64_t>(i));
        EXPECT_EQ(std::vector<double>(sampled.begin(), sampled.end()), of_training[i])
            << "completion " << i << ::testing::PrintToString(layout.overrides);
      }
    });
  }
}

// What a sampler restricts or penalises changes what it draws, not what it says of the policy.
TEST(Sampling, LogProbabilitiesAreThePolicysUnderAnyOptions) {
  const Overrides options =
      sampling({concat(kTask, "top_k=5"), concat(kTask, "top_p=0.9"), concat(kTask, "min_p=0.01"),
                concat(kTask, "repetition_penalty=1.5")});
  const AllConfig config = small_config(options);
  run_parallel(1, {}, [&] {
    const auto model = tapestry::testing::model_with(config, start_weights_of(options));
    const auto sampler = sampler_of(config);
    sampler->set_model(*model);
    const RolloutBatch& batch = sampler->batch(0);
    const auto of_training = scored(*model, config, batch);
    for (size_t i = 0; i < of_training.size(); ++i) {
      EXPECT_THAT(of_training[i],
                  ::testing::Pointwise(::testing::DoubleNear(1e-5),
                                       batch.old_log_probs.of(static_cast<int64_t>(i))));
    }
    const auto plain = sampler_of(small_config(sampling()));
    plain->set_model(*model);
    EXPECT_NE(seen_of(plain->batch(0)).ids, seen_of(batch).ids);
  });
}

TEST(Sampling, StateComesBackWithTheSameBits) {
  RolloutState state;
  state.number = 3;
  state.completions = {{.ids = {1, 256}, .log_probs = {-0.1, -1e-30}, .truncated = false},
                       {.ids = {7}, .log_probs = {-1.0 / 3}, .truncated = true}};
  state.reward_names = {"exact", "program"};
  state.rewards = {{1, 0}, {kNoReward, 0.1}};
  state.ref_log_probs.add(std::vector<double>{-0.2, -0.3});
  state.ref_log_probs.add(std::vector<double>{-2.0 / 3});
  const std::string text = rollout_state_json(state);
  const RolloutState back = parse_rollout_state(text, "x");
  EXPECT_EQ(back.number, 3);
  EXPECT_EQ(back.completions, state.completions);
  EXPECT_EQ(back.reward_names, state.reward_names);
  EXPECT_EQ(back.rewards[0], state.rewards[0]);
  EXPECT_TRUE(std::isnan(back.rewards[1][0]));
  EXPECT_EQ(back.rewards[1][1], 0.1);
  EXPECT_EQ(back.ref_log_probs.of(1)[0], -2.0 / 3);
  EXPECT_EQ(rollout_state_json(back), text);
  EXPECT_THROW(parse_rollout_state("{}", "x"), IoError);
  EXPECT_THROW(parse_rollout_state("{\"number\": 1", "x"), IoError);
}

TEST(Sampling, PromptsWithoutRoomAreLeftOut) {
  const AllConfig config = small_config(sampling());
  run_parallel(1, {}, [&] {
    const auto model = tapestry::testing::model_with(config, start_weights_of(sampling()));
    const auto sampler = sampler_of(config, {"short", std::string(37, 'x'), std::string(36, 'y')});
    EXPECT_THAT(sampler->description(), HasSubstr("completions of 2 prompts"));
    sampler->set_model(*model);
    for (const auto& ids : seen_of(sampler->batch(0)).ids) {
      EXPECT_NE(ids.front(), 'x');
    }
    EXPECT_THAT([&] { sampler_of(config, {std::string(37, 'x')}); },
                ::testing::ThrowsMessage<ValueError>(AllOf(HasSubstr("none of the 1 prompts"),
                                                           HasSubstr("37 tokens"),
                                                           HasSubstr("max_completion_length"))));
    EXPECT_THAT([&] { sampler_of(config, kPrompts, {"exact: solution"}); },
                ::testing::ThrowsMessage<ValueError>(
                    AllOf(HasSubstr("column 'solution'"), HasSubstr("line 1"))));
  });
}

// Each data-parallel rank has a program of its own, whose failure stops all ranks before a step.
TEST(Sampling, ProgramsOfEachDataParallelRank) {
  const data::TempDir dir;
  const AllConfig config = small_config(sampling());
  const State weights = start_weights_of(sampling());
  const std::string good = concat("program: echo start >> ", dir.file("starts"),
                                  "; while read -r line; do echo ${#line}; done");
  run_parallel(2, {}, [&] {
    const auto model = tapestry::testing::model_with(config, weights);
    const auto sampler = sampler_of(config, kPrompts, {good, "length: 5"});
    sampler->set_model(*model);
    const RolloutBatch& batch = sampler->batch(0);
    for (const double reward : batch.rewards[0]) {
      EXPECT_GT(reward, 20);  // the length of a line of JSON
    }
    const auto bad = sampler_of(config, kPrompts, {"program: exit 4"});
    bad->set_model(*model);
    EXPECT_THAT([&] { bad->batch(0); },
                ::testing::ThrowsMessage<StepNotBegun>(HasSubstr("exit code 4")));
  });
  std::ifstream starts(dir.file("starts"));
  int count = 0;
  for (std::string line; std::getline(starts, line);) {
    ++count;
  }
  EXPECT_EQ(count, 2);
}

}  // namespace
}  // namespace tapestry::post_training
