// Losses and gradients of distillation as TRL computes them, from a model and from stored
// log-probabilities: the cases of the folder `distil` in TAPESTRY_GOLDEN_POST_TRAINING.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/io/safetensors.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/post_training/distil/distil_objective.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using Json = nlohmann::json;
using post_training::Teacher;

// Those of the reference's documentation.
constexpr double kLoss = 2e-6;
constexpr double kGradientNorm = 5e-6;

// Sequences in rows that are filled up at their ends, with the teacher's best tokens at each
// position.
struct GoldenRows {
  data::Batch batch;
  int64_t stored = 0;  // tokens a position
  std::vector<int32_t> ids;
  std::vector<float> log_probs;

  explicit GoldenRows(const std::string& file) {
    const SafetensorsReader reader(file);
    batch.batch = reader.entry("input_ids").shape[0];
    const int64_t length = reader.entry("input_ids").shape[1];
    batch.seq = length - 1;  // nothing is after the last
    std::vector<int32_t> tokens(static_cast<size_t>(batch.batch * length));
    std::vector<int32_t> labels(tokens.size());
    reader.read("input_ids", tokens.data());
    reader.read("labels", labels.data());
    for (int64_t row = 0; row < batch.batch; ++row) {
      batch.sample_ids.push_back(row);
      for (int64_t i = 0; i < batch.seq; ++i) {
        const auto at = static_cast<size_t>(row * length + i);
        const int32_t label = labels[at + 1];
        batch.tokens.push_back(tokens[at]);
        batch.labels.push_back(std::max(label, 0));
        batch.loss_mask.push_back(label >= 0 ? 1.0F : 0.0F);
      }
    }
    stored = reader.entry("teacher_top_ids").shape[2];
    ids.resize(static_cast<size_t>(batch.batch * batch.seq * stored));
    log_probs.resize(ids.size());
    reader.read("teacher_top_ids", ids.data());
    reader.read("teacher_top_logprobs", log_probs.data());
  }
};

class StoredTeacher final : public Teacher {
 public:
  StoredTeacher(const GoldenRows& rows, int64_t k) : rows_(rows), k_(k) {}
  void begin_step(const std::vector<data::Batch>& /*micro_batches*/) override {}
  DivergenceTarget target(int64_t /*micro_batch*/,
                          const std::vector<int64_t>& positions) const override {
    const auto count = std::ssize(positions);
    const TopLogProbs top = {.ids = empty({count, k_}, kInt32),
                             .log_probs = empty({count, k_}, kFloat32)};
    for (int64_t i = 0; i < count; ++i) {
      const int64_t from = positions[static_cast<size_t>(i)] * rows_.stored;
      std::copy_n(rows_.ids.begin() + from, k_, top.ids.data<int32_t>() + i * k_);
      std::copy_n(rows_.log_probs.begin() + from, k_, top.log_probs.data<float>() + i * k_);
    }
    return top;
  }

 private:
  const GoldenRows& rows_;
  int64_t k_;
};

AllConfig config_of(const std::string& folder, int64_t length) {
  return init_configs_from_text(
      concat("training_config: {training_iters: 1, log_param_grad_norms: True}\n"
             "model_config: {from_hf: ",
             folder, ", seq_length: ", length,
             "}\n"
             "optimizer_config: {learning_rate: 0.001, clip_grad: 0.0}\n"),
      "golden.yaml", {});
}

testing::State weights_of(const std::string& folder, int64_t length) {
  const AllConfig config = config_of(folder, length);
  const auto model = get_model(config);
  load_weights(*model, config.model_config, folder);
  return get_logical_state(*model);
}

TEST(GoldenDistil, LossesAndGradients) {
  const char* given = std::getenv("TAPESTRY_GOLDEN_POST_TRAINING");
  if (given == nullptr) {
    GTEST_SKIP() << "TAPESTRY_GOLDEN_POST_TRAINING names no folder of cases";
  }
  const std::string folder = given;
  std::ifstream file(folder + "/distil/cases.json");
  ASSERT_TRUE(file) << folder;
  const Json all = Json::parse(file);
  const GoldenRows rows(folder + "/distil/rows.safetensors");
  const std::string student = folder + "/" + all.at("student").get<std::string>();
  const std::string teacher = folder + "/" + all.at("teacher").get<std::string>();
  const testing::State start = weights_of(student, rows.batch.seq);
  const testing::State taught = weights_of(teacher, rows.batch.seq);
  ASSERT_FALSE(all.at("cases").empty());
  for (const Json& c : all.at("cases")) {
    const bool is_stored = c.contains("k");
    const post_training::DistilOptions options = {.temperature = c.value("temperature", 1.0),
                                                  .beta = c.value("beta", 0.0),
                                                  .add_tail = c.value("tail", true)};
    std::unique_ptr<Teacher> source;
    if (is_stored) {
      source = std::make_unique<StoredTeacher>(rows, c.at("k").get<int64_t>());
    } else {
      source = std::make_unique<post_training::ModelTeacher>(
          testing::model_with(config_of(teacher, rows.batch.seq), taught));
    }
    post_training::DistilObjective objective(options, std::move(source));
    testing::Trainer trainer(config_of(student, rows.batch.seq), start);
    trainer.cell.set_objective(&objective);
    const StepResult found = trainer.cell({rows.batch});
    Json shown = c;
    shown.erase("grad_norms");
    const double loss = c.at("loss").get<double>();
    EXPECT_NEAR(found.loss, loss, kLoss * std::max(1.0, std::abs(loss))) << shown;
    // By their sizes: the names of the cases are those of files.
    std::vector<double> norms;
    for (const auto& [name, norm] : c.at("grad_norms").items()) {
      norms.push_back(norm.get<double>());
    }
    std::vector<double> own;
    for (const auto& [name, norm] : found.grad_norms) {
      own.push_back(norm);
    }
    std::sort(norms.begin(), norms.end());
    std::sort(own.begin(), own.end());
    ASSERT_EQ(own.size(), norms.size()) << shown;
    for (size_t i = 0; i < norms.size(); ++i) {
      EXPECT_NEAR(own[i], norms[i], kGradientNorm * norms[i] + 1e-9) << shown;
    }
  }
}

}  // namespace
}  // namespace tapestry
