// Keys of the model and of the data that change what is trained, through the program.
#include <cmath>

#include "autograd/io/json.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry::model_keys_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class ModelKeysTest : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    dir_.write("run.yaml", replaced(kTinyRun, "num_layers: 1", "num_layers: 2"));
  }
  // The losses of a run of three steps with these values, each SECTION.KEY=VALUE.
  std::vector<double> losses(const std::vector<std::string>& settings) {
    const std::string output = "run" + std::to_string(runs_++);
    std::string arguments = "--config_path run.yaml --set training_config.output_dir=" + output;
    for (const std::string& setting : settings) {
      arguments += " --set '" + setting + "'";
    }
    EXPECT_EQ(pretrain(arguments), 0) << said();
    std::vector<double> found;
    for (const Json& step : steps(output)) {
      found.push_back(step.at("loss"));
    }
    EXPECT_EQ(found.size(), 3U);
    found.resize(3);
    return found;
  }
  void expect_refused(const std::string& setting, const std::string& because) {
    EXPECT_EQ(pretrain("--config_path run.yaml --set '" + setting + "'"), 2) << setting;
    EXPECT_THAT(err_, Says(because)) << setting;
  }

 private:
  int runs_ = 0;
};

void expect_close(const std::vector<double>& a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], 1e-5 * b[i]);
  }
}

TEST_F(ModelKeysTest, Positions) {
  const auto none = losses({"model_config.position_embedding_type=none"});
  const auto alibi = losses({"model_config.position_embedding_type=alibi"});
  EXPECT_NE(alibi[0], none[0]);
  EXPECT_EQ(losses({"model_config.use_alibi_mask=True"}), alibi);
  ASSERT_EQ(generate("--checkpoint run1 --prompt 'And the king' --max_new_tokens 20 "
                     "--temperature 0"),
            0)
      << said();
  // On one rank a divided table is a whole one; on two: see layouts/layouts_test.cpp.
  EXPECT_EQ(losses({"model_config.parallel_position_embedding=True"}), losses({}));
}

TEST_F(ModelKeysTest, StartValues) {
  const auto normal = losses({});
  for (const char* other :
       {"init_method_type=xavier_uniform", "init_method=truncatednormal", "bias_init=0.5"}) {
    EXPECT_NE(losses({std::string("model_config.") + other}), normal) << other;
  }
  EXPECT_NEAR(losses({"model_config.init_method=zeros"})[0], std::log(260.0), 1e-5);
}

TEST_F(ModelKeysTest, ScaledScoresGiveTheSameCurve) {
  const std::string scaled = "model_config.apply_query_key_layer_scaling=True";
  const auto plain = losses({});
  EXPECT_EQ(losses({scaled}), plain);  // fused kernels hold scores in float32
  expect_close(losses({scaled, "model_config.use_fused_kernels=False"}), plain);
}

TEST_F(ModelKeysTest, OrderAndLengthOfTheData) {
  EXPECT_NE(losses({"dataset_config.shuffle=False"}), losses({"dataset_config.shuffle=True"}));
  const std::vector<std::string> samples = {"training_config.training_iters=0",
                                            "dataset_config.drop_remainder=False"};
  losses({samples[0], samples[1], "dataset_config.train_samples=6"});
  EXPECT_EQ(pretrain("--config_path run.yaml --set training_config.training_iters=0 --set "
                     "dataset_config.drop_remainder=False --set dataset_config.train_samples=7"),
            2);
  EXPECT_THAT(out_ + err_, HasSubstr("train_samples 7 is no multiple of the 2"));
}

TEST_F(ModelKeysTest, TextsArePreparedInTheFolderThatIsNamed) {
  losses({"dataset_config.data_path=null", "dataset_config.text=text.txt",
          "dataset_config.dataset_dir=elsewhere"});
  EXPECT_FALSE(std::filesystem::is_empty(dir_.file("elsewhere")));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("dataset")));
  dir_.write("elsewhere/train.mindrecord0", "x");
  EXPECT_EQ(pretrain("--config_path run.yaml --set dataset_config.data_path=null --set "
                     "dataset_config.dataset_dir=elsewhere"),
            2);
  EXPECT_THAT(out_ + err_, Says("MindRecord ... files are not read"));
}

TEST_F(ModelKeysTest, DataInTheFolderOfTheDefaultTextAreNotPassedOver) {
  const std::string run =
      "--config_path run.yaml --set dataset_config.data_path=null --set "
      "dataset_config.dataset_dir=";
  const std::pair<const char*, const char*> cases[] = {
      {"set/mine_text_document.idx", "dataset_config.data_path: set/mine_text_document"},
      {"steps/step_0/rank_0/tokens.npy", "dataset_config.step_data_dir: steps"},
      {"texts/a.txt", "dataset_config.text: texts"},
  };
  for (const auto& [file, said] : cases) {
    dir_.write(file, "x");
    const std::string folder = std::string(file).substr(0, std::string(file).find('/'));
    for (const char* more : {"", " --dry_run"}) {
      EXPECT_EQ(pretrain(run + folder + more), 2) << file;
      EXPECT_THAT(out_ + err_, Says(said));
      EXPECT_THAT(out_ + err_, Says("text use another folder"));
    }
  }
}

// Whichever key names it, a folder with data that are not read is named with what lies there, and
// nothing is written into it.
TEST_F(ModelKeysTest, FoldersOfOtherDataAreToldByWhatLiesThere) {
  dir_.write("steps/step_0/rank_0/tokens.npy", "x");
  dir_.write("set/own.idx", "x");
  dir_.write("set/own.bin", "x");
  const std::string steps_key =
      "step_0 is a recorded step; ... dataset_config.step_data_dir: steps";
  const std::string set_key = "own.idx is a data set; ... dataset_config.data_path: set/own";
  const std::pair<std::string, std::string> cases[] = {
      {"data_path=steps", steps_key},
      {"data_path=set", set_key},
      {"data_path=null --set dataset_config.train_data_path=steps", steps_key},
      {"data_path=null --set dataset_config.text=steps", steps_key},
      {"data_path=null --set dataset_config.sft_data_path=set", set_key},
      {"data_path=null --set dataset_config.step_data_dir=set", set_key},
      {"data_path=null --set dataset_config.text=text.txt --set dataset_config.dataset_dir=steps",
       steps_key},
      {"data_path=null --set dataset_config.text=text.txt --set dataset_config.dataset_dir=set",
       set_key}};
  const auto before = tree();
  for (const auto& [keys, said_of_it] : cases) {
    EXPECT_EQ(pretrain("--config_path run.yaml --set training_config.output_dir=output --set "
                       "dataset_config.split=969,30,1 --set dataset_config." +
                       keys),
              2)
        << keys << said();
    EXPECT_THAT(out_ + err_, Says(said_of_it)) << keys;
    EXPECT_EQ(tree(), before) << keys;
  }
}

TEST_F(ModelKeysTest, WhatIsRefusedForGoodNamesAnAlternative) {
  expect_refused("model_config.attn_mask_type=no_mask", "see the one that it has");
  expect_refused("model_config.out_hidden_size=8", "residual stream of ... hidden_size 16");
  expect_refused("parallel_config.heterogeneous_pipeline=True", "num_layer_list ... and offset");
  expect_refused("parallel_config.pipeline_stage_device=[1, 1]", "num_layer_list ... and offset");
}

}  // namespace
}  // namespace tapestry::model_keys_test
