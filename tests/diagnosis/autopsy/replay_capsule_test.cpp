// Bad steps that are kept, and run again in another folder.
#include "diagnosis/autopsy/replay_capsule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/autopsy/capsule.h"
#include "parallel_core/config/show/render.h"
#include "tests/diagnosis/autopsy/planted_faults.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace replay_capsule_test {
namespace {

namespace fs = std::filesystem;
using data::TempDir;
using ::testing::HasSubstr;
using testing::Overrides;
using testing::PlantedStep;

// A spike: a loss and a norm that are numbers, all of whose bits have to return.
const Overrides kSpike = {"training_config.loss_spike_threshold=1.1",
                          "training_config.loss_spike_window=2",
                          "model_config.position_embedding_type=rope",
                          "model_config.hidden_dropout=0.1",
                          "dataset_config.batch_size=2",
                          "optimizer_config.learning_rate=1e-3"};

// The same in any layout and dtype: the second step suffers from the first one's update.
const Overrides kTooFast = {"training_config.loss_spike_threshold=1.1",
                            "training_config.loss_spike_window=1",
                            "model_config.position_embedding_type=rope",
                            "dataset_config.batch_size=2", "optimizer_config.learning_rate=1.0"};

void large_head(nn::Module& model) { testing::set_weight(model, "final_norm.weight", 3, 30.0F); }
void nan_weight(nn::Module& model) {
  testing::set_weight(model, "layers.1.attention.wo.weight", 1,
                      std::numeric_limits<float>::quiet_NaN(), 0);
}

class Replay : public ::testing::Test {
 protected:
  // Runs the steps, and moves what the last one leaves to another folder.
  std::string capsule_of(PlantedStep planted) {
    AutopsyOptions options{.folder = dir_.file("capsule")};
    options.resolved_config = resolved_yaml(testing::small_config(planted.overrides));
    testing::examine_planted(planted, options);
    const std::string name = concat("step_", planted.good_steps + 1);
    fs::create_directories(dir_.file("elsewhere"));
    fs::rename(dir_.file("capsule/" + name), dir_.file("elsewhere/" + name));
    fs::remove_all(dir_.file("capsule"));
    return dir_.file("elsewhere/" + name);
  }
  static ReplayReport replay(const std::string& capsule) {
    return replay_capsule(capsule, single_process_group());
  }
  nlohmann::json json(const std::string& path) const {
    return nlohmann::json::parse(dir_.read(path));
  }
  static std::string refusal(const std::string& capsule) {
    try {
      replay(capsule);
    } catch (const ValueError& error) {
      return error.what();
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  }

  TempDir dir_;
};

TEST_F(Replay, OneProcess) {
  const std::string capsule =
      capsule_of({.overrides = kSpike, .good_steps = 3, .spoil_weights = large_head});
  const ReplayReport report = replay(capsule);
  EXPECT_TRUE(report.returns) << report.text;
  EXPECT_THAT(report.text, HasSubstr("loss_spike, deterministic"));
  const nlohmann::json found = json("elsewhere/step_4/report.json");
  EXPECT_EQ(found.at("command"), "autopsy");
  EXPECT_EQ(found.at("verdict"), "deterministic");
  EXPECT_EQ(found.at("first").at("step"), 4);
  EXPECT_TRUE(fs::exists(capsule + "/data/step_0/rank_0/tokens.npy"));
  EXPECT_THAT(dir_.read("elsewhere/step_4/report.txt"), HasSubstr("is a spike"));
}

TEST_F(Replay, TwoTensorParallelRanksOnEachOfTwoStages) {
  const std::string capsule =
      capsule_of({.overrides = testing::joined({kSpike,
                                                {"parallel_config.tensor_model_parallel_size=2",
                                                 "parallel_config.pipeline_model_parallel_size=2",
                                                 "dataset_config.micro_batch_num=2"}}),
                  .sizes = {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2},
                  .ranks = 4,
                  .micro_batches = 2,
                  .good_steps = 3,
                  .spoil_weights = large_head});
  const ReplayReport report = replay(capsule);
  EXPECT_TRUE(report.returns) << report.text;
}

TEST_F(Replay, RanksThatShareTheOptimizerAndTheWeights) {
  const std::string capsule =
      capsule_of({.overrides = testing::joined({kTooFast, {"parallel_config.zero_level=z3"}}),
                  .ranks = 2,
                  .good_steps = 1});
  const ReplayReport report = replay(capsule);
  EXPECT_TRUE(report.returns) << report.text;
}

TEST_F(Replay, BFloat16WithExperts) {
  const std::string capsule =
      capsule_of({.overrides = testing::joined(
                      {kTooFast,
                       {"training_config.bf16=True", "model_config.params_dtype=bfloat16",
                        "moe_config.num_experts=4"}}),
                  .good_steps = 1});
  const ReplayReport report = replay(capsule);
  EXPECT_TRUE(report.returns) << report.text;
}

TEST_F(Replay, ThePlaceOfANan) {
  const std::string capsule =
      capsule_of({.overrides = kSpike, .good_steps = 1, .spoil_weights = nan_weight});
  const ReplayReport report = replay(capsule);
  EXPECT_TRUE(report.returns) << report.text;
  EXPECT_THAT(report.text, HasSubstr("layers.1.attention.wo.weight is not finite"));
}

TEST_F(Replay, OtherDataDoNotReturnTheBits) {
  const std::string capsule =
      capsule_of({.overrides = kSpike, .good_steps = 3, .spoil_weights = large_head});
  const std::string tokens = capsule + "/data/step_0/rank_0/tokens.npy";
  std::string bytes = dir_.read("elsewhere/step_4/data/step_0/rank_0/tokens.npy");
  bytes[bytes.size() - 4] = static_cast<char>(bytes[bytes.size() - 4] ^ 1);
  dir_.write("elsewhere/step_4/data/step_0/rank_0/tokens.npy", bytes);
  const ReplayReport report = replay(capsule);
  EXPECT_FALSE(report.returns) << report.text;
  EXPECT_THAT(report.text, HasSubstr("do not return"));
}

TEST_F(Replay, WhatCannotBeReplayedIsRefused) {
  EXPECT_THAT(refusal(dir_.file("nowhere")), HasSubstr("capsule.json: cannot be read"));
  const std::string capsule =
      capsule_of({.overrides = kSpike, .good_steps = 1, .spoil_weights = nan_weight});
  const autopsy::CapsuleRecord record = autopsy::read_capsule_record(capsule);
  const auto changed = [&](const std::function<void(autopsy::CapsuleRecord&)>& change) {
    autopsy::CapsuleRecord other = record;
    change(other);
    autopsy::write_capsule_record(capsule, other);
    return refusal(capsule);
  };
  EXPECT_THAT(changed([](auto& r) { r.ranks[0].machine.cpu_level = "other"; }),
              HasSubstr("set TAPESTRY_CPU_LEVEL=other"));
  EXPECT_THAT(changed([](auto& r) { r.ranks[0].machine.blas = "other"; }),
              HasSubstr("OPENBLAS_CORETYPE"));
  EXPECT_THAT(changed([](auto& r) {
                r.ranks[0].machine.threads = 2;
                r.ranks.push_back(r.ranks[0]);
              }),
              HasSubstr("mpirun -n 2 pretrain_gpt --replay"));
  autopsy::write_capsule_record(capsule, record);
  EXPECT_EQ(refusal(capsule), "");
  fs::remove(capsule + "/data/step_0/rank_0/labels.npy");
  EXPECT_THAT(refusal(capsule), HasSubstr("labels.npy is missing"));
  dir_.write("elsewhere/step_2/capsule.json", "{\"format_version\": 1}");
  EXPECT_THAT(refusal(capsule), HasSubstr("capsule.json: a member is missing"));
  dir_.write("elsewhere/step_2/capsule.json", "{\"format_version\": 9}");
  EXPECT_THAT(refusal(capsule), HasSubstr("format_version 9"));
}

TEST_F(Replay, OnlySoManyAreKept) {
  const AllConfig config = testing::small_config({"training_config.max_capsules=2"});
  testing::run_parallel(1, {}, [&] {
    testing::Trainer trainer(config);
    StepAutopsy autopsy(trainer.cell, config,
                        {.folder = dir_.file("capsule"), .resolved_config = resolved_yaml(config)});
    nan_weight(*trainer.model);
    for (int64_t step = 0; step < 3; ++step) {
      trainer.cell(testing::planted_batches(config, step, PlantedStep{}));
    }
  });
  EXPECT_TRUE(fs::exists(dir_.file("capsule/step_1")));
  EXPECT_TRUE(fs::exists(dir_.file("capsule/step_2")));
  EXPECT_FALSE(fs::exists(dir_.file("capsule/step_3")));
}

}  // namespace
}  // namespace replay_capsule_test
}  // namespace tapestry
