// The data of tasks: what a configuration opens, what a run goes on with, what is refused.
#include "parallel_core/post_training/task_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/process_group.h"
#include "tests/message_of.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::post_training {
namespace task_data_test {
namespace {

using data::TempDir;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::joined;
using ::testing::Not;
using testing::Overrides;
using testing::run_parallel;
using testing::small_config;

constexpr const char* kPairs =
    "{\"prompt\": \"p\", \"chosen\": \" yes\", \"rejected\": \" no\"}\n"
    "{\"prompt\": \"q\", \"chosen\": \" y\", \"rejected\": \" n\"}\n"
    "{\"prompt\": \"r\", \"chosen\": \"a\", \"rejected\": \"b\"}\n";
constexpr const char* kUnpaired =
    "{\"prompt\": \"p\", \"completion\": \"yes\", \"label\": true}\n"
    "{\"prompt\": \"q\", \"completion\": \"no\", \"label\": false}\n"
    "{\"prompt\": \"r\", \"completion\": \"y\", \"label\": true}\n"
    "{\"prompt\": \"s\", \"completion\": \"n\", \"label\": false}\n";

class TaskDataTest : public ::testing::Test {
 protected:
  TaskDataTest() { dir_.write("pairs.jsonl", kPairs); }

  AllConfig config(const std::string& task, const Overrides& overrides = {}) const {
    return small_config(joined(
        {"model_config.vocab_size=260", "model_config.seq_length=16",
         "dataset_config.tokenizer_type=byte", "dataset_config.shuffle=False",
         "training_config.output_dir=" + dir_.file("run"), "post_training_config.task=" + task,
         "post_training_config.data=" + dir_.file("pairs.jsonl")},
        overrides));
  }
  std::string refusal(const Overrides& overrides, const std::string& task = "dpo") const {
    return message_of<ConfigError>([&] { config(task, overrides); });
  }
  // In one process.
  static TaskData open(const AllConfig& config, const DataState* resumed = nullptr) {
    std::optional<TaskData> data;
    run_parallel(1, {}, [&] {
      data = open_task_data(config, *single_process_group(), DataUse::kTraining, resumed);
    });
    return *std::move(data);
  }
  static std::vector<int64_t> units(const TaskData& data, int64_t step, int64_t batch) {
    std::vector<int64_t> found;
    const data::Batch drawn = data.run.train->micro_batch({step, step * batch}, 0, 1, batch, 0, 1);
    for (const auto& row : drawn.sequences) {
      for (const data::RowSequence& sequence : row) {
        found.push_back(sequence.number);
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  TempDir dir_;
};

TEST_F(TaskDataTest, PairsOfAFile) {
  const TaskData data = open(config("dpo", {"dataset_config.batch_size=2"}));
  const TaskExamples& examples = *data.examples;
  EXPECT_EQ(examples.units(), 3);
  EXPECT_EQ(examples.train_units, 3);
  EXPECT_THAT(examples.sequences.ids(0), ElementsAre('p', ' ', 'y', 'e', 's', 256));
  EXPECT_EQ(examples.sequences.prompt_tokens(0), 1);
  EXPECT_THAT(data.run.description, Says("pairs.jsonl: 3 pairs ... byte tokenizer"));
  EXPECT_THAT(data.run.trained_ends, ElementsAre(256));
  EXPECT_THAT(units(data, 0, 2), ElementsAre(0, 1, 2, 3));
  // The last step of an epoch has what is left.
  EXPECT_THAT(units(data, 1, 2), ElementsAre(4, 5));
  EXPECT_THAT(units(data, 2, 2), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(data.run.train->epoch(3), 0);
  EXPECT_EQ(data.run.train->epoch(4), 1);
}

TEST_F(TaskDataTest, EveryTaskReadsItsFormat) {
  EXPECT_EQ(open(config("orpo")).examples->sequences.per_unit(), 2);
  const TaskData reward = open(config("reward"));
  EXPECT_EQ(reward.examples->sequences.prompt_tokens(0), 1);
  const TaskData kto = open(config("kto", {"dataset_config.batch_size=2"}));
  EXPECT_THAT(kto.examples->labels, ElementsAre(1, 1, 1, 0, 0, 0));
  const TaskData grpo = open(config("grpo", {"post_training_config.max_completion_length=8"}));
  EXPECT_THAT(grpo.examples->lines[2], Says("\"prompt\":\"r\" ... \"chosen\":\"a\""));
  EXPECT_EQ(grpo.examples->sequences.completion_tokens(2), 0);
}

TEST_F(TaskDataTest, ShuffledEpochsHaveOrdersOfTheirOwn) {
  std::string many;
  for (int i = 0; i < 40; ++i) {
    many += "{\"prompt\": \"" + std::to_string(i) + "\", \"chosen\": \"a\", \"rejected\": \"b\"}\n";
  }
  dir_.write("pairs.jsonl", many);
  const TaskData data = open(config("dpo", {"dataset_config.shuffle=True"}));
  std::vector<std::vector<int64_t>> epochs(2);
  for (int64_t i = 0; i < 80; ++i) {
    epochs[static_cast<size_t>(i / 40)].push_back(units(data, i, 1).front());
  }
  EXPECT_NE(epochs[0], epochs[1]);
  std::sort(epochs[0].begin(), epochs[0].end());
  std::sort(epochs[1].begin(), epochs[1].end());
  EXPECT_EQ(epochs[0], epochs[1]);
  EXPECT_EQ(data.run.train->epoch(79), 1);
}

TEST_F(TaskDataTest, ValidationIsReadInOrderAndWhole) {
  dir_.write("more.jsonl", kPairs);
  const AllConfig with =
      config("dpo", {"post_training_config.validation_data=" + dir_.file("more.jsonl"),
                     "training_config.eval_interval=1", "dataset_config.batch_size=2"});
  const TaskData data = open(with);
  EXPECT_EQ(data.examples->validation_units(), 3);
  EXPECT_EQ(data.run.validation->size_in_samples(), 3);
  const data::Batch batch = data.run.validation->micro_batch({0, 0}, 0, 1, 2, 0, 1);
  EXPECT_EQ(batch.sequences[0].front().number / 2, 3);  // behind those of training
  const data::Batch rest = data.run.validation->micro_batch({1, 2}, 0, 1, 2, 0, 1);
  EXPECT_EQ(rest.sequences[0].size(), 2);
  AllConfig once = with;
  once.training_config.eval_iters = 1;
  const TaskData few = open(once);
  EXPECT_THAT(few.run.remarks, Contains(Says("first 2 of the 3 pairs ... 2 would read all")));
  // Training is what it is without.
  EXPECT_EQ(data.run.opened.task->ids_crc64, open(config("dpo")).run.opened.task->ids_crc64);
}

TEST_F(TaskDataTest, MaxLengthFollowsTheRow) {
  EXPECT_EQ(config("dpo").post_training_config.max_length, 16);
  EXPECT_EQ(config("dpo", {"post_training_config.max_length=null"}).post_training_config.max_length,
            16);
  EXPECT_EQ(config("dpo", {"post_training_config.max_length=5"}).post_training_config.max_length,
            5);
  EXPECT_THAT(refusal({"post_training_config.max_length=17"}),
              Says("post_training_config.max_length ... is 17 ... room for 16 ... seq_length"));
  const TaskData cut = open(config("dpo", {"post_training_config.max_length=4"}));
  EXPECT_THAT(cut.examples->sequences.ids(0), ElementsAre('p', ' ', 'y', 'e'));
  const TaskData end = open(config("dpo", {"post_training_config.max_length=4",
                                           "post_training_config.truncation_mode=keep_end"}));
  EXPECT_THAT(end.examples->sequences.ids(0), ElementsAre('y', 'e', 's', 256));
  EXPECT_EQ(end.examples->sequences.prompt_tokens(0), 0);
  EXPECT_THAT(refusal({"post_training_config.truncation_mode=keep_end"}, "kto"),
              Says("truncation_mode ... keep_end ... kto"));
}

TEST_F(TaskDataTest, KtoExchangesCompletionsWithinSteps) {
  dir_.write("pairs.jsonl", kUnpaired);
  const TaskData data = open(config("kto", {"dataset_config.batch_size=2"}));
  const SequenceSet& pairs = data.examples->mismatched;
  ASSERT_EQ(pairs.size(), 4);
  EXPECT_THAT(pairs.ids(0), ElementsAre('p', 'n', 'o', 256));
  EXPECT_THAT(pairs.ids(3), ElementsAre('s', 'y', 256));
  EXPECT_EQ(open(config("kto", {"dataset_config.batch_size=2",
                                "post_training_config.loss_type=apo_zero_unpaired"}))
                .examples->mismatched.size(),
            0);
  EXPECT_THAT(message_of<ValueError>([&] { open(config("kto")); }),
              Says("kto ... one example ... batch_size"));
  EXPECT_THAT(message_of<ValueError>([&] { open(config("kto", {"dataset_config.batch_size=5"})); }),
              Says("kto ... 5 ... has 4"));
}

TEST_F(TaskDataTest, ARunGoesOnWithTheSameExamples) {
  const AllConfig same = config("dpo");
  const DataState saved = open(same).run.state({1, 2});
  const DataState then = parse_data_state(data_state_json(saved), "state");
  EXPECT_EQ(then.task, saved.task);
  const TaskData again = open(same, &then);
  EXPECT_EQ(again.run.start.first_sample, 2);
  const auto difference = [&](const AllConfig& now) {
    return message_of<ValueError>([&] { open(now, &then); });
  };
  EXPECT_THAT(difference(config("orpo")), Says("post_training_config.task is orpo; it was dpo"));
  EXPECT_THAT(difference(config("dpo", {"post_training_config.max_length=5"})),
              Says("max_length is 5; it was 16"));
  EXPECT_THAT(difference(config("dpo", {"dataset_config.eos_token_id=10"})),
              Says("token that ends a text is 10; it was 256"));
  EXPECT_THAT(difference(config("dpo", {"dataset_config.shuffle=True"})), Says("shuffle is True"));
  dir_.write("pairs.jsonl", std::string(kPairs) + kPairs);
  EXPECT_THAT(difference(same), Says("post_training_config.data ... bytes ... it was"));
  // Another global batch ends epochs elsewhere.
  dir_.write("pairs.jsonl", kPairs);
  EXPECT_EQ(open(config("dpo", {"dataset_config.batch_size=3"}), &then).run.start.first_sample, 2);
  EXPECT_THAT(difference(config("dpo", {"dataset_config.batch_size=2"})), Says("global batch"));
  dir_.write("pairs.jsonl", std::string(kPairs) + kPairs);
  // With other data at their beginning.
  const TaskData anew = open(config("dpo", {"training_config.new_dataset=True"}), &then);
  EXPECT_EQ(anew.run.start.first_sample, 0);
  EXPECT_EQ(anew.run.opened.begun.first_sample, 2);
}

TEST_F(TaskDataTest, WhatCannotBeIsRefused) {
  EXPECT_THAT(refusal({"post_training_config.data=null"}),
              Says("post_training_config.data ... is not given"));
  for (const char* key : {"data_path", "text", "sft_data_path", "step_data_dir"}) {
    EXPECT_THAT(refusal({std::string("dataset_config.") + key + "=x"}),
                Says(std::string("dataset_config.") + key + " ... task dpo"));
  }
  EXPECT_THAT(refusal({"training_config.rampup_batch_size=[1, 1, 8]"}),
              HasSubstr("training_config.rampup_batch_size"));
  EXPECT_THAT(refusal({"training_config.eval_interval=2"}),
              Says("training_config.eval_interval ... validation_data"));
  EXPECT_THAT(refusal({"post_training_config.reference=adapter_off"}),
              Says("post_training_config.reference ... no adapter"));
  EXPECT_THAT(message_of<ValueError>(
                  [&] { open(config("reward", {"post_training_config.max_length=2"})); }),
              Says("post_training_config.data ... none is left ... max_length ... 2"));
  // A text cannot be opened in place of a task's examples.
  EXPECT_THAT(
      message_of<ValueError>([&] { run_parallel(1, {}, [&] { open_data(config("dpo")); }); }),
      Says("post_training_config.task dpo ... null"));
}

}  // namespace
}  // namespace task_data_test
}  // namespace tapestry::post_training
