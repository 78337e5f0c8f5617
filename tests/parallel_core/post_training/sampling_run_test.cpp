// Runs of task grpo whose policy samples: stopped and gone on with at any point, ended by a reward
// program, held against a reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/post_training/run_task.h"
#include "parallel_core/training/pretrain.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::joined;
using testing::Overrides;
using testing::small_config;

class SamplingRun : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string prompts;
    for (int i = 0; i < 10; ++i) {
      prompts += json{{"prompt", std::to_string(i) + "+1="}, {"answer", i + 1}}.dump() + "\n";
    }
    dir_.write("prompts.jsonl", prompts);
  }

  // Two steps to a generation, each trained on twice: checkpoints lie in the middle of one.
  AllConfig config(const std::string& output, const Overrides& more = {}) const {
    return small_config(joined(
        {"training_config.output_dir=" + dir_.file(output), "training_config.training_iters=10",
         "training_config.save_interval=3", "training_config.log_interval=5",
         "training_config.resume_training=True", "model_config.vocab_size=257",
         "model_config.seq_length=24", "dataset_config.tokenizer_type=byte",
         "dataset_config.batch_size=4", "optimizer_config.learning_rate=1e-3",
         "post_training_config.task=grpo",
         "post_training_config.data=[" + dir_.file("prompts.jsonl") + "]",
         "post_training_config.reward_funcs=['length: 1..5', 'regex: [a-m]']",
         "post_training_config.num_generations=4", "post_training_config.max_completion_length=8",
         "post_training_config.steps_per_generation=2", "post_training_config.num_iterations=2"},
        more));
  }
  static TrainSummary run(const AllConfig& config) {
    PretrainOptions options;
    options.task = post_training::run_task;
    return pretrain(config, options);
  }
  std::vector<json> lines(const std::string& name) const {
    std::vector<json> out;
    std::ifstream in(dir_.file(name));
    for (std::string line; std::getline(in, line);) {
      out.push_back(json::parse(line));
    }
    return out;
  }
  // What does not depend on when and how fast a run ran.
  std::vector<json> metrics(const std::string& output) const {
    std::vector<json> out = lines(output + "/metrics.jsonl");
    for (json& line : out) {
      for (const char* name : {"step_time_ms", "peak_bytes", "memory", "step_time/generation_ms",
                               "step_time/rewards_ms"}) {
        line.erase(name);
      }
    }
    return out;
  }
  void expect_same(const std::string& a, const std::string& b) const {
    EXPECT_EQ(metrics(a), metrics(b));
    EXPECT_EQ(lines(a + "/samples.jsonl"), lines(b + "/samples.jsonl"));
  }

  data::TempDir dir_;
};

TEST_F(SamplingRun, TellsWhatItSamples) {
  run(config("whole"));
  const std::vector<json> steps = metrics("whole");
  ASSERT_EQ(steps.size(), 10);
  EXPECT_EQ(steps[0]["sampling/sampling_logp_difference/max"], 0.0);
  EXPECT_EQ(steps[4]["sampling/sampling_logp_difference/max"], 0.0);
  EXPECT_FALSE(steps[1].contains("sampling/sampling_logp_difference/max")) << "other weights";
  EXPECT_TRUE(steps[1].contains("rewards/length/mean"));
  EXPECT_TRUE(steps[1].contains("rewards/regex/mean"));
  EXPECT_TRUE(lines("whole/metrics.jsonl")[4].contains("step_time/generation_ms"));
  EXPECT_FALSE(lines("whole/metrics.jsonl")[5].contains("step_time/generation_ms"));
  const std::vector<json> samples = lines("whole/samples.jsonl");
  ASSERT_EQ(samples.size(), 24) << "three generations of eight completions";
  EXPECT_EQ(samples[0]["step"], 1);
  EXPECT_EQ(samples[8]["step"], 5);
  EXPECT_EQ(samples[23]["step"], 9);
  EXPECT_EQ(samples[0]["prompt"], samples[3]["prompt"]) << "a group";
  EXPECT_NE(samples[0]["prompt"], samples[4]["prompt"]);
  double advantages = 0;
  for (size_t i = 0; i < 4; ++i) {
    advantages += samples[i]["advantage"].get<double>();
    EXPECT_LT(samples[i]["mean_log_prob"], 0.0);
    EXPECT_EQ(samples[i]["rewards"]["length"], samples[i]["length"] <= 5 ? 1.0 : 0.0);
  }
  EXPECT_NEAR(advantages, 0, 1e-12);
}

// Stopped in the middle of a generation, at its end, and in the middle of a pass over it.
TEST_F(SamplingRun, GoesOnWithTheSameBits) {
  run(config("whole"));
  for (const int64_t stop : {3, 4, 5, 7}) {
    const std::string output = concat("stopped_", stop);
    run(config(output, {concat("training_config.training_iters=", stop)}));
    run(config(output));
    expect_same("whole", output);
  }
}

// Killed behind a checkpoint: what it has done since is done again.
TEST_F(SamplingRun, DoesAgainWhatNoCheckpointHas) {
  run(config("whole"));
  run(config("killed", {"training_config.training_iters=8", "training_config.save_last=False"}));
  ASSERT_EQ(lines("killed/metrics.jsonl").size(), 8);
  run(config("killed"));
  expect_same("whole", "killed");
}

// A program that cannot go on ends the run with nothing lost; once it is mended, the run goes on.
TEST_F(SamplingRun, IsSavedWhenARewardCannotBeHad) {
  const std::string program =
      "post_training_config.reward_funcs=['program: sh " + dir_.file("reward.sh") + "']";
  const std::string good = "while read -r line; do echo ${#line}; done\n";
  dir_.write("reward.sh", good);
  run(config("whole", {program}));
  // From the second generation on.
  dir_.write("reward.sh",
             "for i in 1 2 3 4 5 6 7 8; do read -r line; echo ${#line}; done\n"
             "read -r line; echo broken >&2; exit 9\n");
  std::ofstream(dir_.file("mark")) << 0;
  const std::string once = "if [ -e " + dir_.file("mark") + " ]; then rm " + dir_.file("mark") +
                           "; for i in 1 2 3 4 5 6 7 8; do read -r line; echo ${#line}; done; fi\n"
                           "read -r line; exit 9\n";
  dir_.write("reward.sh", once);
  EXPECT_THAT(
      [&] {
        run(config("broken", {program, "training_config.save_interval=null"}));
      },
      ::testing::ThrowsMessage<TrainingStopped>(
          AllOf(HasSubstr("exit code 9"), HasSubstr("stopped before step 5"),
                HasSubstr("step 4 is saved"), HasSubstr("resume_training"))));
  dir_.write("reward.sh", good);
  run(config("broken", {program}));
  expect_same("whole", "broken");
}

TEST_F(SamplingRun, EveryDataParallelLayoutHasTheSameSamples) {
  run(config("one", {"dataset_config.micro_batch_num=2"}));
  const AllConfig two = config("two");
  run_thread_ranks(2,
                   [&](const std::shared_ptr<ProcessGroup>& world) {
                     PretrainOptions options;
                     options.task = post_training::run_task;
                     options.world = world;
                     pretrain(two, options);
                   },
                   {.timeout_seconds = testing::kTestTimeout});
  const auto one = lines("one/samples.jsonl");
  const auto both = lines("two/samples.jsonl");
  ASSERT_EQ(one.size(), both.size());
  for (size_t i = 0; i < 16; ++i) {  // of the first generation, whose weights are the same
    EXPECT_EQ(one[i], both[i]);
  }
  EXPECT_EQ(lines("two/metrics.jsonl")[0]["sampling/sampling_logp_difference/max"], 0.0);
}

TEST_F(SamplingRun, IsHeldAgainstAReference) {
  run(config("held", {"post_training_config.beta=0.1"}));
  const std::vector<json> steps = metrics("held");
  EXPECT_NEAR(steps[0]["kl"].get<double>(), 0, 1e-9) << "the reference is the start";
  EXPECT_GT(steps[9]["kl"].get<double>(), 0);
  run(config("stopped", {"post_training_config.beta=0.1", "training_config.training_iters=5"}));
  run(config("stopped", {"post_training_config.beta=0.1"}));
  expect_same("held", "stopped");
}

TEST_F(SamplingRun, IsHeldAgainstItselfWithoutAdapter) {
  run(config("lora", {"post_training_config.beta=0.1", "lora_config.use_lora=True",
                      "post_training_config.reference=adapter_off"}));
  const std::vector<json> steps = metrics("lora");
  EXPECT_NEAR(steps[0]["kl"].get<double>(), 0, 1e-9);
  EXPECT_GT(steps[9]["kl"].get<double>(), 0);
  EXPECT_EQ(steps[0]["sampling/sampling_logp_difference/max"], 0.0);
}

TEST_F(SamplingRun, RefusesWhatCannotBe) {
  EXPECT_THAT([&] { run(config("a", {"post_training_config.reward_funcs=[]"})); },
              ::testing::ThrowsMessage<ValueError>(HasSubstr("reward_funcs is empty")));
  EXPECT_THAT([&] { run(config("a", {"post_training_config.reward_funcs=['exact: solution']"})); },
              ::testing::ThrowsMessage<ValueError>(HasSubstr("column 'solution'")));
  EXPECT_THAT([&] { run(config("a", {"post_training_config.max_completion_length=23"})); },
              ::testing::ThrowsMessage<ValueError>(HasSubstr("none is left")));
}

}  // namespace
}  // namespace tapestry
