// Steps in exact mode: one hash, however a batch is divided into micro-batches, and what is written
// of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/watch/evaluation.h"
#include "parallel_core/training/watch/hash_log.h"
#include "tests/parallel_core/small_model.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

namespace exact_training {

using data::TempDir;
using testing::make_batch;
using testing::Overrides;
using testing::small_config;
using ::testing::StartsWith;
using testing::Trainer;

const Overrides kExact = {"training_config.exact=True", "model_config.hidden_dropout=0.1",
                          "model_config.attention_dropout=0.1"};

std::vector<data::Batch> divided(const AllConfig& config, int64_t step, int64_t rows_each) {
  constexpr int64_t kRows = 8;
  std::vector<data::Batch> batches;
  for (int64_t row = 0; row < kRows; row += rows_each) {
    batches.push_back(make_batch(config, rows_each, kRows * step + row));
  }
  return batches;
}

// Hashes of three steps.
std::vector<std::string> train_hashes(const Overrides& overrides, int64_t rows_each) {
  Trainer trainer(overrides);
  HashLog log(trainer.cell, trainer.config, nullptr);
  std::vector<std::string> hashes;
  for (int64_t step = 0; step < 3; ++step) {
    FinishedStep finished;
    finished.result = trainer.cell(divided(trainer.config, step, rows_each));
    log.after(finished);
    hashes.push_back(finished.record.hash);
  }
  return hashes;
}

TEST(ExactTraining, AnyMicroBatchesHaveOneHash) {
  for (const Overrides& more :
       {Overrides{}, Overrides{"model_config.mtp_num_layers=1"},
        Overrides{"training_config.bf16=True"}, Overrides{"dataset_config.data_layout=SBH"}}) {
    SCOPED_TRACE(::testing::PrintToString(more));
    const Overrides overrides = testing::joined(kExact, more);
    const std::vector<std::string> whole = train_hashes(overrides, 8);
    EXPECT_EQ(train_hashes(overrides, 4), whole);
    EXPECT_EQ(train_hashes(overrides, 1), whole);
    EXPECT_NE(whole[0], whole[1]);
  }
}

TEST(ExactTraining, HashHasTheClassAndEachBitOfTheWeights) {
  Trainer trainer(kExact);
  HashLog log(trainer.cell, trainer.config, nullptr);
  FinishedStep finished;
  finished.result = trainer.cell(divided(trainer.config, 0, 8));
  log.after(finished);
  const std::string before = finished.record.hash;
  EXPECT_THAT(before, StartsWith("float32-"));
  EXPECT_EQ(before.size() - before.find(':') - 1, 32U);
  EXPECT_THAT(metrics_line(finished.record, finished.result),
              ::testing::HasSubstr("\"hash\":\"" + before + "\""));
  auto* weight = trainer.model->named_parameters().back().parameter->data<float>();
  *weight = std::bit_cast<float>(std::bit_cast<uint32_t>(*weight) ^ 1U);
  log.after(finished);
  EXPECT_NE(finished.record.hash, before);
}

TEST(ExactTraining, FileNamesTensorsOnceAndGoesOnBehindAStep) {
  const TempDir dir;
  const std::string path = dir.file("hashes.jsonl");
  HashesOfStep hashes{.parameters = {{"a", {.low = 1, .high = 0}}, {"b", {.low = 2, .high = 0}}},
                      .gradients = {{"b", {.low = 3, .high = 0}}},
                      .loss = 1,
                      .grad_norm = 2};
  {
    HashesFile file(path, {});
    file.write(1, "float32-fma", hashes);
    file.write(2, "float32-fma", hashes);
  }
  hashes.gradients.clear();
  {
    HashesFile file(path, 1);
    file.write(2, "float32-fma", hashes);
    file.write(3, "bfloat16-pairs", hashes);
  }
  const std::string step =
      R"(,"loss":"3ff0000000000000","grad_norm":"4000000000000000","parameters":"0000000100000002")";
  EXPECT_EQ(dir.read("hashes.jsonl"), R"({"class":"float32-fma","names":["a","b"]})"
                                      "\n{\"step\":1" +
                                          step +
                                          R"(,"gradients":"0000000000000003"})"
                                          "\n{\"step\":2" +
                                          step +
                                          "}\n"
                                          R"({"class":"bfloat16-pairs","names":["a","b"]})"
                                          "\n{\"step\":3" +
                                          step + "}\n");
}

// Sixteen numbered rows.
class Rows final : public data::DataSource {
 public:
  explicit Rows(const AllConfig& config) : config_(config) {}
  data::Batch micro_batch(data::BatchPosition position,
                          int64_t micro_index,
                          int64_t /*micro_batch_num*/,
                          int64_t micro_batch_size,
                          int64_t dp_rank,
                          int64_t dp_size) override {
    return make_batch(config_, micro_batch_size,
                      position.first_sample + micro_index * micro_batch_size * dp_size +
                          dp_rank * micro_batch_size);
  }
  int64_t seq_length() const override { return config_.model_config.seq_length; }
  int64_t size_in_samples() const override { return 16; }
  int64_t epoch(int64_t /*first_sample*/) const override { return 0; }

 private:
  const AllConfig& config_;
};

TEST(ExactTraining, EvaluationHasTheSameBits) {
  initialize_model_parallel();
  const auto loss_with = [](int64_t rows, int64_t micro_batches) {
    Trainer trainer(
        testing::joined(kExact, {concat("dataset_config.batch_size=", rows),
                                 concat("dataset_config.micro_batch_num=", micro_batches)}));
    Rows rows_of(trainer.config);
    return std::bit_cast<uint64_t>(evaluate(*trainer.model, rows_of, trainer.config, 2));
  };
  const uint64_t whole = loss_with(8, 1);
  EXPECT_EQ(loss_with(4, 2), whole);
  EXPECT_EQ(loss_with(1, 8), whole);
  destroy_model_parallel();
}

}  // namespace exact_training

}  // namespace
}  // namespace tapestry
