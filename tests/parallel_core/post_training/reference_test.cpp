// A reference's log-probabilities before training: whose they are, in every layout, kept and found
// again; and evaluations of an objective.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "autograd/io/json.h"
#include "autograd/io/safetensors.h"
#include "autograd/ops/reduction.h"
#include "autograd/tensor/error.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/post_training/example_task.h"
#include "parallel_core/post_training/reference/reference_file.h"
#include "parallel_core/training/pretrain.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::post_training {
namespace reference_test {
namespace {

namespace fs = std::filesystem;
using data::TempDir;
using testing::joined;
using testing::Overrides;
using testing::small_config;

// The mean log-probability of completions, which falls, beside the reference's.
class Dislike final : public StepObjective {
 public:
  Dislike(std::shared_ptr<const TaskExamples> examples,
          std::shared_ptr<const LogProbTable> reference)
      : examples_(std::move(examples)), reference_(std::move(reference)) {}

  void begin_step(ParallelModel& /*model*/,
                  int64_t /*step*/,
                  const std::vector<data::Batch>& micro_batches,
                  bool training) override {
    sums_ = {};
    for (const data::Batch& batch : micro_batches) {
      for (const auto& row : batch.sequences) {
        for (const data::RowSequence& sequence : row) {
          const int64_t number = sequence.number;
          sums_[0] += 1;
          sums_[1] += reference_->sum(number);
          EXPECT_EQ(training, examples_->unit_of(number) < examples_->train_units);
        }
      }
    }
    sum_over(get_data_parallel_group(), sums_);
    log_probs_ = {};
  }
  const TokenScoresRequest* scores() const override { return &request_; }
  Tensor part(int64_t /*micro_batch*/, const data::Batch& /*batch*/, ModelOutput& output) override {
    const Tensor total = sum(output.scores->log_probs);
    log_probs_[0] += total.item();
    return total * (1 / sums_[0]);
  }
  NamedValues finish_step() override {
    sum_over_pipeline(log_probs_);
    sum_over(get_data_parallel_group(), log_probs_);
    return {{"log_prob", log_probs_[0] / sums_[0]}, {"reference", sums_[1] / sums_[0]}};
  }

 private:
  std::shared_ptr<const TaskExamples> examples_;
  std::shared_ptr<const LogProbTable> reference_;
  TokenScoresRequest request_;
  std::array<double, 2> sums_ = {};
  std::array<double, 1> log_probs_ = {};
};

class DislikeTask final : public ExampleTask {
 public:
  std::unique_ptr<StepObjective> objective(const AllConfig& /*config*/,
                                           TrainOneStepCell& /*cell*/) override {
    return std::make_unique<Dislike>(examples(), reference());
  }
};

constexpr const char* kPairs =
    "{\"prompt\": \"who\", \"chosen\": \" me\", \"rejected\": \" nobody\"}\n"
    "{\"prompt\": \"q\", \"chosen\": \" y\", \"rejected\": \"\"}\n"
    "{\"prompt\": \"\", \"chosen\": \"a\", \"rejected\": \"bb\"}\n"
    "{\"prompt\": \"a longer one\", \"chosen\": \" b\", \"rejected\": \"bc\"}\n";

class ReferenceTest : public ::testing::Test {
 protected:
  ReferenceTest() { dir_.write("pairs.jsonl", kPairs); }

  AllConfig config(const std::string& output, const Overrides& more = {}) const {
    return small_config(joined(
        {"model_config.vocab_size=260", "model_config.seq_length=32",
         "model_config.position_embedding_type=rope", "dataset_config.tokenizer_type=byte",
         "dataset_config.shuffle=False", "dataset_config.batch_size=2",
         "dataset_config.micro_batch_num=2", "training_config.training_iters=2",
         "training_config.num_threads=1", "training_config.log_interval=null",
         "training_config.output_dir=" + dir_.file(output), "optimizer_config.learning_rate=0.01",
         "optimizer_config.lr_decay_style=constant", "post_training_config.task=dpo",
         "post_training_config.data=" + dir_.file("pairs.jsonl")},
        more));
  }
  void run(const AllConfig& configuration, int ranks = 1, bool overwrite = false) const {
    run_thread_ranks(ranks,
                     [&](const std::shared_ptr<ProcessGroup>& world) {
                       PretrainOptions options;
                       options.world = world;
                       options.overwrite = overwrite;
                       options.task = [](const AllConfig& /*config*/) {
                         return std::make_unique<DislikeTask>();
                       };
                       pretrain(configuration, options);
                       destroy_model_parallel();
                     },
                     {.timeout_seconds = testing::kTestTimeout});
  }
  std::vector<float> values(const std::string& output) const {
    const SafetensorsReader reader(dir_.file(output) + "/" + kReferenceFile);
    std::vector<float> all(static_cast<size_t>(reader.entry("log_probs").shape.numel()));
    reader.read("log_probs", all.data());
    return all;
  }
  std::vector<nlohmann::json> lines(const std::string& output) const {
    std::istringstream text(dir_.read(output + "/metrics.jsonl"));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(text, line);) {
      all.push_back(nlohmann::json::parse(line));
    }
    return all;
  }
  void expect_same_values(const std::string& a, const std::string& b) const {
    const std::vector<float> x = values(a);
    const std::vector<float> y = values(b);
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(x[i], y[i], 2e-6 * std::abs(x[i])) << i;
    }
  }

  TempDir dir_;
};

TEST_F(ReferenceTest, IsTheModelAsItWasAtTheStart) {
  run(config("one"));
  const auto steps = lines("one");
  const double reference = steps[0].at("reference");
  EXPECT_LT(reference, -3);
  EXPECT_NEAR(steps[0].at("log_prob"), reference, 1e-5 * std::abs(reference));
  EXPECT_LT(steps[1].at("log_prob").get<double>(), reference - 1e-3);
  EXPECT_EQ(steps[1].at("reference"), steps[0].at("reference"));
  // One value for each token behind another: of an answer to nothing one less.
  EXPECT_EQ(values("one").size(), 4U + 8 + 3 + 1 + 1 + 2 + 3 + 3);
}

TEST_F(ReferenceTest, IsTheSameInEveryLayout) {
  run(config("one"));
  const auto one = lines("one");
  const std::pair<int, Overrides> layouts[] = {
      {2, {"dataset_config.micro_batch_num=1"}},
      {4, {"dataset_config.batch_size=1", "dataset_config.micro_batch_num=1"}},
      {2,
       {"parallel_config.tensor_model_parallel_size=2", "parallel_config.sequence_parallel=True"}},
      {2, {"parallel_config.pipeline_model_parallel_size=2"}},
      {2, {"parallel_config.context_parallel_size=2"}},
      {2, {"dataset_config.micro_batch_num=1", "parallel_config.zero_level=z3"}}};
  for (const auto& [ranks, layout] : layouts) {
    SCOPED_TRACE(layout.back());
    run(config("ranks", layout), ranks);
    expect_same_values("ranks", "one");
    const auto many = lines("ranks");
    for (size_t step = 0; step < 2; ++step) {
      for (const char* name : {"loss", "log_prob", "reference"}) {
        const double expected = one[step].at(name);
        EXPECT_NEAR(many[step].at(name), expected, 1e-5 * std::abs(expected)) << name;
      }
    }
    fs::remove_all(dir_.file("ranks"));
  }
}

TEST_F(ReferenceTest, WithoutTheAdapterItIsTheBase) {
  run(config("base"));
  const Overrides lora = {"lora_config.use_lora=True", "lora_config.lora_rank=2",
                          "lora_config.lora_b_std=0.5", "lora_config.lora_alpha=4",
                          "post_training_config.reference=adapter_off"};
  run(config("off", lora));
  expect_same_values("off", "base");
  const auto steps = lines("off");
  EXPECT_GT(
      std::abs(steps[0].at("log_prob").get<double>() - steps[0].at("reference").get<double>()),
      1e-2);
  const Overrides dora =
      joined(lora, {"lora_config.use_dora=True", "lora_config.lora_b_std=0",
                    "training_config.training_iters=3", "training_config.save_interval=2"});
  run(config("dora", dora));
  expect_same_values("dora", "base");
  // And of one that has been trained, once more.
  fs::remove(dir_.file("dora") + "/" + kReferenceFile);
  run(config("dora", joined(dora, {"training_config.resume_training=True",
                                   "training_config.training_iters=4"})));
  expect_same_values("dora", "base");
  // With its adapter it is the model as it was at the start.
  run(config("on", joined(lora, {"post_training_config.reference=null"})));
  EXPECT_NEAR(lines("on")[0].at("log_prob"), lines("on")[0].at("reference"), 1e-4);
}

TEST_F(ReferenceTest, OfAFolderLeavesTheRunItsOwnWeights) {
  run(config("trained"));
  run(config("alone"));
  run(config("against",
             {"post_training_config.reference=" + dir_.file("trained/checkpoint/step_00000002")}));
  // Weights of a run in pieces come from files alone, and go back there.
  const auto against = lines("against");
  EXPECT_EQ(against[0].at("log_prob"), lines("alone")[0].at("log_prob"));
  EXPECT_EQ(against[1].at("log_prob"), lines("alone")[1].at("log_prob"));
  EXPECT_LT(against[0].at("reference").get<double>(),
            lines("trained")[1].at("log_prob").get<double>());
  const Overrides from = {"training_config.load_checkpoint=" +
                          dir_.file("alone/checkpoint/step_00000002")};
  const Overrides reference = {"post_training_config.reference=" +
                               dir_.file("trained/checkpoint/step_00000002")};
  run(config("whole", joined(from, reference)));
  run(config("pieces", joined({from,
                               reference,
                               {"parallel_config.zero_level=z3", "dataset_config.batch_size=1"}})),
      2);
  expect_same_values("pieces", "against");
  expect_same_values("whole", "against");
  for (size_t step = 0; step < 2; ++step) {
    const double expected = lines("whole")[step].at("log_prob");
    EXPECT_NEAR(lines("pieces")[step].at("log_prob"), expected, 1e-5 * std::abs(expected));
  }
}

TEST_F(ReferenceTest, IsFoundAgainOrMadeAgain) {
  run(config("parts"));
  const std::vector<float> first = values("parts");
  const std::string file = dir_.file("parts") + "/" + kReferenceFile;
  const Overrides more = {"training_config.resume_training=True",
                          "training_config.training_iters=3"};
  const auto written = fs::last_write_time(file);
  run(config("parts", more));
  EXPECT_EQ(fs::last_write_time(file), written);
  EXPECT_EQ(lines("parts")[2].at("reference"), lines("parts")[0].at("reference"));
  // Of a run that goes on the start values of the seed, not what it has become.
  fs::remove(file);
  run(config("parts",
             {"training_config.resume_training=True", "training_config.training_iters=4"}));
  EXPECT_EQ(values("parts"), first);
  EXPECT_LT(lines("parts")[3].at("log_prob").get<double>(),
            lines("parts")[2].at("log_prob").get<double>());
  // Other examples, or another model, have values of their own.
  run(config("parts", {"post_training_config.max_length=8"}), 1, /*overwrite=*/true);
  EXPECT_LT(values("parts").size(), first.size());
  run(config("parts", {"training_config.seed=8"}), 1, /*overwrite=*/true);
  EXPECT_EQ(values("parts").size(), first.size());
  EXPECT_NE(values("parts"), first);
}

TEST_F(ReferenceTest, EvaluationsMeasureTheObjective) {
  dir_.write("more.jsonl", std::string(kPairs) + kPairs);
  const Overrides evaluated = {"post_training_config.validation_data=" + dir_.file("more.jsonl"),
                               "training_config.eval_interval=2", "training_config.eval_iters=5"};
  run(config("one", evaluated));
  const auto one = lines("one");
  EXPECT_FALSE(one[0].contains("eval_loss"));
  EXPECT_FALSE(one[1].contains("eval_perplexity"));
  // Examples of training twice: what the next step begins with.
  run(config("longer", {"training_config.training_iters=3"}));
  const double next = lines("longer")[2].at("log_prob");
  EXPECT_NEAR(one[1].at("eval_log_prob"), next, 1e-5 * std::abs(next));
  EXPECT_NEAR(one[1].at("eval_loss"), one[1].at("eval_log_prob").get<double>(), 1e-4);
  EXPECT_NEAR(one[1].at("eval_reference"), one[0].at("reference").get<double>(), 1e-4);
  run(config("ranks", joined(evaluated, {"dataset_config.micro_batch_num=1"})), 2);
  const double expected = one[1].at("eval_loss");
  EXPECT_NEAR(lines("ranks")[1].at("eval_loss"), expected, 1e-5 * std::abs(expected));
  run(config("best", joined(evaluated, {"training_config.eval_metric=reference"})));
  EXPECT_ERROR(run(config("other", joined(evaluated, {"training_config.eval_metric=nothing"}))),
               ValueError, "eval_metric is 'nothing'");
}

}  // namespace
}  // namespace reference_test
}  // namespace tapestry::post_training
