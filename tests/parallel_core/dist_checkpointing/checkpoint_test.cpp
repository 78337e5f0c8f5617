#include "parallel_core/dist_checkpointing/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/manifest.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using data::TempDir;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Overrides;
using testing::small_config;
using testing::State;

// Jittered weights, saved and read back.
class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() : config_(small_config()), model_(get_model(config_)) { testing::jitter(*model_); }

  std::string save(int64_t step, int64_t keep_max = 5) {
    return save_checkpoint(*model_, config_.model_config, step,
                           {.directory = dir_.file("checkpoint"),
                            .keep_max = keep_max,
                            .resolved_config = "seed: 1\n"});
  }
  std::vector<std::string> names(const std::string& folder) const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(dir_.file(folder))) {
      found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  // A model with other weights, after loading.
  State loaded(const std::string& path) const {
    const auto other = get_model(config_);
    load_weights(*other, config_.model_config, path);
    return get_logical_state(*other);
  }

  TempDir dir_;
  AllConfig config_;
  std::unique_ptr<GPTModel> model_;
};

TEST_F(Checkpoint, RoundTripBitForBit) {
  const std::string folder = save(12);
  EXPECT_EQ(folder, dir_.file("checkpoint/step_00000012"));
  EXPECT_THAT(names("checkpoint"), ElementsAre("step_00000012"));
  EXPECT_THAT(names("checkpoint/step_00000012"),
              ElementsAre("config.json", "config.yaml", "generation_config.json", "manifest.json",
                          "model.safetensors"));
  EXPECT_EQ(dir_.read("checkpoint/step_00000012/config.yaml"), "seed: 1\n");
  const State expected = get_logical_state(*model_);
  testing::expect_states_equal(loaded(folder), expected);
  testing::expect_states_equal(loaded(folder + "/model.safetensors"), expected);
  testing::expect_states_equal(loaded(dir_.file("checkpoint")), expected);
  testing::expect_states_equal(loaded(dir_.path()), expected);
}

TEST_F(Checkpoint, HoldsTheFilesOfTheTokenizer) {
  CheckpointOptions options;
  options.directory = dir_.file("checkpoint");
  options.source.files = {{"tokenizer.model", "pieces"}, {"added_tokens.json", ""}};
  const std::string folder = save_checkpoint(*model_, config_.model_config, 1, options);
  EXPECT_EQ(dir_.read("checkpoint/step_00000001/tokenizer.model"), "pieces");
  EXPECT_TRUE(fs::exists(folder + "/added_tokens.json"));  // empty, as it came
  EXPECT_EQ(dir_.read("checkpoint/step_00000001/added_tokens.json"), "");
  EXPECT_EQ(fault_of_checkpoint(folder, /*checksums=*/true), "");
}

TEST_F(Checkpoint, KeepsTheNewestOnes) {
  for (const int64_t step : {1, 2, 3, 4}) {
    save(step, 2);
  }
  EXPECT_THAT(names("checkpoint"), ElementsAre("step_00000003", "step_00000004"));
  save(5, 1);
  EXPECT_THAT(names("checkpoint"), ElementsAre("step_00000005"));
}

TEST_F(Checkpoint, NeverRemovesTheOneJustWritten) {
  for (const int64_t step : {10, 20, 30}) {
    save(step, 3);
  }
  save(5, 2);  // a run that began again in the same folder
  EXPECT_THAT(names("checkpoint"), ElementsAre("step_00000005", "step_00000030"));
}

TEST_F(Checkpoint, LeavesOtherFoldersAlone) {
  dir_.write("checkpoint/step_best/model.safetensors", "mine");
  dir_.write("checkpoint/step_00000001.bak/model.safetensors", "mine");
  save(1, 1);
  save(2, 1);
  EXPECT_THAT(names("checkpoint"), ElementsAre("step_00000001.bak", "step_00000002", "step_best"));
  EXPECT_EQ(resolve_checkpoint(dir_.path()), dir_.file("checkpoint/step_00000002"));
}

TEST_F(Checkpoint, TheNewestIsThatOfTheHighestStep) {
  save(99999999);
  save(100000000);  // one digit more
  EXPECT_EQ(resolve_checkpoint(dir_.file("checkpoint")), dir_.file("checkpoint/step_100000000"));
  // A folder without weights is not a checkpoint.
  fs::create_directory(dir_.file("checkpoint/step_200000000"));
  EXPECT_EQ(resolve_checkpoint(dir_.path()), dir_.file("checkpoint/step_100000000"));
}

TEST_F(Checkpoint, ReplacesTheSameStepWhole) {
  dir_.write("checkpoint/step_00000003/optimizer.safetensors", "of another run");
  dir_.write("checkpoint/step_00000003/model.safetensors", "of another run");
  const std::string folder = save(3);
  EXPECT_THAT(names("checkpoint"), ElementsAre("step_00000003"));
  EXPECT_THAT(names("checkpoint/step_00000003"),
              ElementsAre("config.json", "config.yaml", "generation_config.json", "manifest.json",
                          "model.safetensors"));
  testing::expect_states_equal(loaded(folder), get_logical_state(*model_));
}

TEST_F(Checkpoint, RemovesWhatACrashLeftOfTheSameStep) {
  dir_.write("checkpoint/.step_00000003.tmp/rest", "half");
  save(3);
  EXPECT_THAT(names("checkpoint"), ElementsAre("step_00000003"));
}

TEST_F(Checkpoint, FailureLeavesNothingBehind) {
  dir_.write("checkpoint", "a file");
  EXPECT_ERROR(save(1), IoError, "checkpoint/step_00000001");
  fs::remove(dir_.file("checkpoint"));
  save(1);
  CheckpointOptions options;
  options.directory = dir_.file("checkpoint");
  options.source.files = {{"no_such_folder/tokenizer.model", "pieces"}};
  for (const int64_t step : {1, 2}) {
    EXPECT_ERROR(save_checkpoint(*model_, config_.model_config, step, options), IoError,
                 "no_such_folder");
    EXPECT_THAT(names("checkpoint"), ElementsAre("step_00000001"));
  }
  testing::expect_states_equal(loaded(dir_.path()), get_logical_state(*model_));
}

TEST_F(Checkpoint, WeightsThatAreNotFiniteAreNotSaved) {
  save(1);
  nn::Parameter& parameter = *model_->named_parameters().back().parameter;
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    parameter.data<float>()[0] = bad;
    parameter.bump_version();
    for (const int64_t step : {1, 2}) {
      EXPECT_ERROR(save(step, 1), RuntimeError, parameter.logical().front().name);
      EXPECT_ERROR(save(step, 1), RuntimeError, "the last one is ");
      EXPECT_THAT(names("checkpoint"), ElementsAre("step_00000001"));
    }
  }
}

TEST_F(Checkpoint, WritingAndRemovingApart) {
  const CheckpointOptions options{.directory = dir_.file("checkpoint"), .keep_max = 1};
  write_checkpoint(*model_, config_.model_config, 1, options);
  const std::string newest = write_checkpoint(*model_, config_.model_config, 2, options);
  EXPECT_THAT(names("checkpoint"), ElementsAre("step_00000001", "step_00000002"));
  remove_old_checkpoints(options.directory, options.keep_max, newest);
  EXPECT_THAT(names("checkpoint"), ElementsAre("step_00000002"));
  set_checkpoint_aside(newest, "diverged_step_2");
  EXPECT_THAT(names("checkpoint"), ElementsAre("diverged_step_2"));
  EXPECT_ERROR(resolve_checkpoint(dir_.path()), IoError, "holds neither");
  EXPECT_ERROR(set_checkpoint_aside(newest, "diverged_step_2"), IoError, "cannot be renamed");
}

TEST_F(Checkpoint, AnEarlierRunsIsNamedButNotTaken) {
  dir_.write("old/run_2/checkpoint/step_00000007/model.safetensors", "x");
  dir_.write("old/run_10/checkpoint/step_00000003/model.safetensors", "x");
  dir_.write("old/run_11/metrics.jsonl", "x");
  EXPECT_ERROR(resolve_checkpoint(dir_.path()), IoError, "old/run_10/checkpoint/step_00000003");
  save(1);
  EXPECT_EQ(resolve_checkpoint(dir_.path()), dir_.file("checkpoint/step_00000001"));
}

TEST_F(Checkpoint, NothingToResolve) {
  EXPECT_ERROR(resolve_checkpoint(dir_.file("none")), IoError, "none: there is no such");
  fs::create_directory(dir_.file("empty"));
  EXPECT_ERROR(resolve_checkpoint(dir_.file("empty")), IoError, "model.safetensors");
  dir_.write("pickled/pytorch_model.bin", "x");
  EXPECT_ERROR(resolve_checkpoint(dir_.file("pickled")), IoError, "pytorch_model.bin");
}

TEST_F(Checkpoint, LoadsInMemoryPaths) {
  write_state(dir_.file("memory.safetensors"), model_->state_dict());
  testing::expect_states_equal(loaded(dir_.file("memory.safetensors")), get_logical_state(*model_));
}

TEST_F(Checkpoint, LoadsLogicalNames) {
  write_state(dir_.file("logical.safetensors"), get_logical_state(*model_));
  testing::expect_states_equal(loaded(dir_.file("logical.safetensors")),
                               get_logical_state(*model_));
}

TEST_F(Checkpoint, ConvertsDtypes) {
  State half;
  for (const auto& [name, tensor] : get_logical_state(*model_)) {
    half[name] = tensor.to(kBFloat16);
  }
  write_state(dir_.file("half.safetensors"), half);
  for (const auto& [name, tensor] : loaded(dir_.file("half.safetensors"))) {
    EXPECT_TRUE(testing::same_bits(tensor, half.at(name).to(kFloat32))) << name;
  }
}

TEST_F(Checkpoint, LoadsShards) {
  State first;
  State second;
  nlohmann::json index;
  for (const auto& [name, tensor] : get_logical_state(*model_)) {
    const bool early = name < "layers.1";
    (early ? first : second)[name] = tensor;
    index["weight_map"][name] =
        early ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
  }
  fs::create_directory(dir_.file("shards"));
  write_state(dir_.file("shards/model-00001-of-00002.safetensors"), first);
  write_state(dir_.file("shards/model-00002-of-00002.safetensors"), second);
  dir_.write("shards/model.safetensors.index.json", index.dump());
  testing::expect_states_equal(loaded(dir_.file("shards")), get_logical_state(*model_));
  fs::remove(dir_.file("shards/model-00002-of-00002.safetensors"));
  EXPECT_ERROR(loaded(dir_.file("shards")), IoError, "model-00002-of-00002.safetensors");
}

TEST_F(Checkpoint, ReportsAllThatDoesNotFitAndChangesNothing) {
  State state = get_logical_state(*model_);
  state["layers.7.attention.wq.weight"] = ones({3});
  state["final_norm.weight"] = ones({31});
  state.erase("layers.1.attention.wo.bias");
  state["layers.0.attention.wk.weight"] = ones({32, 16});
  write_state(dir_.file("wrong.safetensors"), state);
  const State before = get_logical_state(*model_);
  EXPECT_THAT([&] { load_weights(*model_, config_.model_config, dir_.file("wrong.safetensors")); },
              ::testing::ThrowsMessage<ValueError>(::testing::AllOf(
                  ::testing::HasSubstr("wrong.safetensors"),
                  ::testing::HasSubstr("layers.7.attention.wq.weight"),
                  ::testing::HasSubstr("final_norm.weight"), ::testing::HasSubstr("[31]"),
                  ::testing::HasSubstr("layers.1.attention.wo.bias"),
                  ::testing::HasSubstr("layers.0.attention.wk.weight"))));
  testing::expect_states_equal(get_logical_state(*model_), before);
}

TEST_F(Checkpoint, ATrainingStepSeesTheLoadedWeights) {
  // Whatever a parameter's version guards has to be made anew.
  const std::string folder = save(1);
  testing::Trainer trainer;
  const data::Batch batch = testing::make_batch(config_, 2);
  trainer.cell({batch});
  load_weights(*trainer.model, config_.model_config, folder);
  EXPECT_EQ(trainer.model->forward(to_model_input(batch)).loss.item(),
            model_->forward(to_model_input(batch)).loss.item());
}

}  // namespace
}  // namespace tapestry
