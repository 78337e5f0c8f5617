// Data, metrics and evaluations of a program's own: runs that go on, layouts, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/data/epoch_source.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/training/pretrain.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace own_data_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::joined;
using testing::Overrides;
using ::testing::SizeIs;
using testing::small_config;

constexpr int64_t kEpoch = 13;  // samples

data::Sample sample(int64_t number, int64_t length) {
  data::Sample made;
  for (int64_t i = 0; i < length; ++i) {
    made.tokens.push_back((7 * number + 3 * i) % 31);
    made.labels.push_back(i % 4 == 3 ? -1 : (7 * number + 3 * i + 3) % 31);
  }
  return made;
}

std::unique_ptr<data::DataSource> source(const AllConfig& config, int64_t first) {
  const int64_t length = config.model_config.seq_length;
  return std::make_unique<data::EpochSource>(
      data::EpochSourceOptions{.size = kEpoch,
                               .seq_length = length,
                               .sample = [=](int64_t i) { return sample(first + i, length); },
                               .vocab_size = config.model_config.vocab_size});
}

OwnData own(const AllConfig& config, const DataRank& /*rank*/) {
  return {.train = source(config, 0),
          .validation = source(config, 100),
          .test = source(config, 200),
          .fingerprint = "lines, version 1"};
}

// Of counting labels, the share with the largest logit, and the mean loss.
std::vector<double> right(const EvaluatedBatch& evaluated) {
  const data::Batch& batch = evaluated.batch;
  EXPECT_EQ(evaluated.logits.shape(), (Shape{batch.batch, batch.seq, 31}));
  const auto* logits = evaluated.logits.data<float>();
  std::vector<double> sums(2);
  for (size_t i = 0; i < batch.labels.size(); ++i, logits += 31) {
    sums[0] += std::max_element(logits, logits + 31) - logits == batch.labels[i]
                   ? batch.loss_mask[i]
                   : 0.0F;
    sums[1] += batch.loss_mask[i];
  }
  return sums;
}
std::vector<double> own_loss(const EvaluatedBatch& evaluated) {
  const data::Batch& batch = evaluated.batch;
  const auto* logits = evaluated.logits.data<float>();
  std::vector<double> sums(3);  // the third is a constant for each micro-batch
  for (size_t i = 0; i < batch.labels.size(); ++i, logits += 31) {
    double sum = 0;
    for (int64_t v = 0; v < 31; ++v) {
      sum += std::exp(static_cast<double>(logits[v]));
    }
    sums[0] += batch.loss_mask[i] * (std::log(sum) - logits[batch.labels[i]]);
    sums[1] += batch.loss_mask[i];
  }
  sums[2] = 1;
  return sums;
}

const std::vector<EvaluationMetric> kMetrics = {
    {.name = "right", .measure = right},
    {.name = "own_loss", .measure = own_loss, .value = [](std::span<const double> sums) {
       return sums[0] / sums[1];
     }}};

class OwnDataTest : public ::testing::Test {
 protected:
  AllConfig config(const std::string& output, const Overrides& more = {}) const {
    return small_config(
        joined({"training_config.training_iters=9",
                "training_config.output_dir=" + dir_.file(output), "training_config.num_threads=1",
                "training_config.eval_interval=3", "training_config.eval_iters=2",
                "training_config.save_interval=3", "training_config.log_interval=null",
                "dataset_config.batch_size=2", "dataset_config.micro_batch_num=4"},
               more));
  }
  void run(const AllConfig& configuration, int ranks = 1, PretrainOptions options = {}) const {
    options.data = options.data ? options.data : own;
    run_thread_ranks(ranks,
                     [&](const std::shared_ptr<ProcessGroup>& world) {
                       PretrainOptions own_options = options;
                       own_options.world = world;
                       pretrain(configuration, own_options);
                       destroy_model_parallel();
                     },
                     {.timeout_seconds = testing::kTestTimeout});
  }
  std::vector<nlohmann::json> lines(const std::string& output) const {
    std::istringstream text(dir_.read(output + "/metrics.jsonl"));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(text, line);) {
      nlohmann::json json = nlohmann::json::parse(line);
      for (const char* changing : {"step_time_ms", "peak_bytes", "memory", "bubble"}) {
        json.erase(changing);
      }
      all.push_back(std::move(json));
    }
    return all;
  }
  TempDir dir_;
};

TEST_F(OwnDataTest, ARunGoesOnBitForBit) {
  run(config("whole"), 1, {.metrics = kMetrics});
  const auto whole = lines("whole");
  ASSERT_THAT(whole, SizeIs(9));
  EXPECT_EQ(whole[1].at("epoch"), 0);
  EXPECT_EQ(whole[2].at("epoch"), 16 / kEpoch);
  EXPECT_EQ(whole[8].at("epoch"), 64 / kEpoch);
  EXPECT_TRUE(whole[2].contains("eval_right"));
  EXPECT_TRUE(whole[8].contains("test_right"));
  run(config("parts", {"training_config.training_iters=3"}), 1, {.metrics = kMetrics});
  run(config("parts", {"training_config.resume_training=True"}), 1, {.metrics = kMetrics});
  auto parts = lines("parts");
  for (const char* of_end : {"test_loss", "test_perplexity", "test_right", "test_own_loss"}) {
    parts.at(2).erase(of_end);
  }
  EXPECT_EQ(parts, whole);
  testing::expect_states_equal(read_weights(dir_.file("parts/checkpoint/step_00000009")),
                               read_weights(dir_.file("whole/checkpoint/step_00000009")));
}

TEST_F(OwnDataTest, AnotherFingerprintIsRefusedOrBegunAnew) {
  run(config("output", {"training_config.training_iters=3"}));
  PretrainOptions other{.data = [](const AllConfig& c, const DataRank& rank) {
    OwnData made = own(c, rank);
    made.fingerprint = "lines, version 2";
    return made;
  }};
  const Overrides resume = {"training_config.resume_training=True"};
  EXPECT_ERROR(run(config("output", resume), 1, other), ValueError,
               "the fingerprint of the program's data is lines, version 2; it was lines, version "
               "1");
  run(config("output", joined(resume, {"training_config.new_dataset=True"})), 1, other);
  EXPECT_THAT(lines("output"), SizeIs(9));
  EXPECT_EQ(lines("output")[3].at("epoch"), 0);
}

// Everything that ranks compute together is what one computes, but for the order of sums.
TEST_F(OwnDataTest, LayoutsComputeTheSame) {
  run(config("one"), 1, {.metrics = kMetrics});
  const auto one = lines("one");
  const std::pair<int, Overrides> layouts[] = {
      {2, {"dataset_config.micro_batch_num=2"}},
      {2,
       {"parallel_config.tensor_model_parallel_size=2", "parallel_config.sequence_parallel=True",
        "dataset_config.data_layout=SBH"}},
      {2, {"parallel_config.pipeline_model_parallel_size=2"}},
      {2, {"parallel_config.context_parallel_size=2"}},
      {4,
       {"parallel_config.tensor_model_parallel_size=2",
        "parallel_config.pipeline_model_parallel_size=2"}}};
  for (const auto& [ranks, layout] : layouts) {
    run(config("ranks", joined(layout, {"training_config.save_last=False",
                                        "training_config.save_interval=null"})),
        ranks, {.metrics = kMetrics});
    const auto many = lines("ranks");
    ASSERT_THAT(many, SizeIs(9));
    for (const size_t step : {2U, 5U, 8U}) {
      for (const char* name : {"loss", "eval_loss", "eval_own_loss"}) {
        const double expected = one[step].at(name);
        EXPECT_NEAR(many[step].at(name).get<double>(), expected, 1e-5 * expected) << name;
      }
      EXPECT_EQ(many[step].at("eval_right"), one[step].at("eval_right")) << layout.front();
    }
    fs::remove_all(dir_.file("ranks"));
  }
  // The program's loss is the library's.
  for (const size_t step : {2U, 5U, 8U}) {
    const double expected = one[step].at("eval_loss");
    EXPECT_NEAR(one[step].at("eval_own_loss").get<double>(), expected, 1e-6 * expected);
  }
}

// An evaluation of one's own: what each data-parallel rank finds is summed over all of them.
std::map<std::string, double> own_evaluation(const EvaluationRequest& request) {
  std::map<std::string, double> values = {
      {"loss", evaluate(request.model, request.source, request.config, 1)}};
  const int64_t rank = get_data_parallel_rank();
  const data::Batch batch =
      request.source.micro_batch({}, 0, 1, 1, rank, get_data_parallel_world_size());
  values["tokens"] = sum_over(get_data_parallel_group(), static_cast<double>(batch.tokens.size()));
  values["step"] = static_cast<double>(request.step);
  return values;
}

TEST_F(OwnDataTest, AnEvaluationFunctionTakesThePlaceOfTheLibrarys) {
  const Overrides keys = {
      "dataset_config.micro_batch_num=2", "training_config.best_metric_comparison=less",
      "training_config.eval_metric=step", "tensorboard.tensorboard_dir=" + dir_.file("board")};
  run(config("output", keys), 2, {.evaluation = own_evaluation});
  const auto all = lines("output");
  EXPECT_EQ(all[5].at("eval_step"), 6);
  EXPECT_EQ(all[5].at("eval_tokens"), 16);
  EXPECT_TRUE(all[5].contains("eval_loss"));
  EXPECT_EQ(all[8].at("test_step"), 9);
  const auto best = nlohmann::json::parse(dir_.read("output/checkpoint/best.json"));
  EXPECT_EQ(best.at("metric"), "step");
  EXPECT_EQ(best.at("step"), 3);
  EXPECT_THAT(dir_.read("output/log/rank_0/info.log"),
              HasSubstr(", step: 6.000000, tokens: 16.000000"));
  std::string events;
  for (const auto& entry : fs::directory_iterator(dir_.file("board/rank_0"))) {
    events += dir_.read("board/rank_0/" + entry.path().filename().string());
  }
  EXPECT_THAT(events, AllOf(HasSubstr("eval-tokens"), HasSubstr("test-step")));
}

TEST_F(OwnDataTest, WhatCannotBeIsRefused) {
  const auto refused = [&](const Overrides& keys, PretrainOptions options, const char* said,
                           int ranks = 1) {
    options.overwrite = true;
    EXPECT_ERROR(run(config("output", keys), ranks, options), ValueError, said);
  };
  refused({"dataset_config.data_path=a"}, {},
          "dataset_config.data_path names data, but this program has data of its own");
  const auto changed = [](std::function<void(OwnData&)> change) {
    return PretrainOptions{.data = [change](const AllConfig& c, const DataRank& rank) {
      OwnData made = own(c, rank);
      change(made);
      return made;
    }};
  };
  refused({}, changed([](OwnData& made) { made.train = nullptr; }), "no part for training");
  refused({}, changed([](OwnData& made) { made.validation = nullptr; }),
          "eval_interval is set, but the program's data have no part for validation");
  refused({}, changed([](OwnData& made) {
            made.test = std::make_unique<data::EpochSource>(data::EpochSourceOptions{
                .size = 1, .seq_length = 5, .sample = [](int64_t i) { return sample(i, 5); }});
          }),
          "the test data of the program have rows of 5 tokens, model_config.seq_length is 8");
  refused({"dataset_config.micro_batch_num=2"},
          {.data =
               [](const AllConfig& c, const DataRank& rank) {
                 OwnData made = own(c, rank);
                 made.fingerprint += std::to_string(rank.rank);
                 return made;
               }},
          "on another; all ranks read the same data", 2);
  refused({"training_config.best_metric_comparison=less", "training_config.eval_metric=wrong"},
          {.metrics = kMetrics},
          "eval_metric is 'wrong', but this program's evaluations compute loss, perplexity, right, "
          "own_loss");
  refused({}, {.metrics = {{.name = "loss", .measure = right}}}, "two metrics loss");
  refused({}, {.metrics = {{.name = "empty"}}}, "the metric empty has no function");
  refused({}, {.metrics = {{.name = "three", .measure = own_loss}}},
          "the metric three measures 3 numbers");
  refused({"dataset_config.micro_batch_num=2"},
          {.evaluation =
               [](const EvaluationRequest&) {
                 return std::map<std::string, double>{
                     {"loss", static_cast<double>(get_data_parallel_rank())}};
               }},
          "returned other values on another rank", 2);
  refused({"training_config.best_metric_comparison=less", "training_config.eval_metric=wrong"},
          {.evaluation = own_evaluation}, "the evaluation has computed no value of that name");
}

TEST(EpochSource, EachEpochHasAnOrderOfItsOwn) {
  data::EpochSource shuffled({.size = 5, .seq_length = 1, .sample = [](int64_t i) {
                                return data::Sample{.tokens = {i}, .labels = {i}};
                              }});
  const auto epoch = [&](int64_t number) {
    return shuffled.micro_batch({0, 5 * number}, 0, 1, 5, 0, 1).tokens;
  };
  const std::vector<int64_t> first = epoch(0);
  const std::vector<int64_t> second = epoch(1);
  EXPECT_NE(first, second);
  EXPECT_EQ(epoch(0), first);  // whenever it is asked for
  EXPECT_THAT(first, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(second, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(shuffled.epoch(4), 0);
  EXPECT_EQ(shuffled.epoch(5), 1);
  // Ranks share consecutive samples.
  EXPECT_EQ(shuffled.micro_batch({0, 1}, 1, 2, 1, 1, 2).tokens[0], first[4]);
  data::EpochSource plain(
      {.size = 2,
       .seq_length = 1,
       .sample = [](int64_t i) { return data::Sample{.tokens = {i}, .labels = {i == 1 ? -1 : 3}}; },
       .shuffle = false,
       .vocab_size = 4});
  const data::Batch batch = plain.micro_batch({0, 2}, 0, 1, 2, 0, 1);
  EXPECT_THAT(batch.tokens, ElementsAre(0, 1));
  EXPECT_THAT(batch.labels, ElementsAre(3, 0));
  EXPECT_THAT(batch.loss_mask, ElementsAre(1, 0));
  EXPECT_THAT(batch.sample_ids, ElementsAre(2, 3));
}

TEST(EpochSource, BadSamplesAreNamed) {
  const auto drawn = [](data::Sample made, int64_t vocabulary = 0) {
    data::EpochSource bad({.size = 3,
                           .seq_length = 2,
                           .sample = [made](int64_t) { return made; },
                           .shuffle = false,
                           .vocab_size = vocabulary});
    bad.micro_batch({0, 1}, 0, 1, 1, 0, 1);
  };
  EXPECT_ERROR(drawn({.tokens = {1}, .labels = {1, 2}}), ValueError,
               "sample 1 has 1 tokens, 2 labels, 2 mask values and 0 positions, expected 2");
  EXPECT_ERROR(drawn({.tokens = {1, 9}, .labels = {1, 2}}, 9), ValueError,
               "sample 1: id 9 is outside the vocabulary of 9");
  EXPECT_ERROR(data::EpochSource(
                   {.size = 0, .seq_length = 1, .sample = [](int64_t) { return data::Sample(); }}),
               ValueError, "0 samples of 1 tokens");
  EXPECT_ERROR(data::EpochSource({.size = 1, .seq_length = 1}), ValueError, "no function");
}

}  // namespace
}  // namespace own_data_test
}  // namespace tapestry
