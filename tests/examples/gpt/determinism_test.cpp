// The same configuration gives the same bits, run after run; the number of threads changes neither
// the initial weights nor which elements are dropped.
#include <cmath>

#include "autograd/io/json.h"
#include "tests/examples/gpt/run_program.h"

namespace tapestry::determinism_test {
namespace {

using Json = nlohmann::json;

class DeterminismTest : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    // Wide enough that every operation is split among the threads.
    std::string text = replaced(kTinyRun, "hidden_size: 16", "hidden_size: 64");
    text = replaced(text, "ffn_hidden_size: 32", "ffn_hidden_size: 256");
    text = replaced(text, "num_layers: 1", "num_layers: 2");
    text = replaced(text, "seq_length: 16",
                    "seq_length: 32\n  hidden_dropout: 0.1\n  attention_dropout: 0.1");
    dir_.write("run.yaml", replaced(text, "batch_size: 2", "batch_size: 8"));
  }
  void train(const std::string& output, const std::string& arguments) {
    ASSERT_EQ(pretrain("--config_path run.yaml --overwrite --set training_config.output_dir=" +
                       output + " " + arguments),
              0)
        << said();
  }
  Json step(const std::string& output, size_t number) const { return steps(output).at(number - 1); }
};

const std::string kSaving =
    "--set training_config.save_interval=3 --set training_config.dump_weight_steps=[1,3] --set "
    "training_config.dump_grad_steps=[2] --set training_config.log_param_grad_norms=True ";
constexpr const char* kWeights = "/checkpoint/step_00000003/model.safetensors";

TEST_F(DeterminismTest, TwoRunsWithOneSeedAreIdentical) {
  for (const char* threads : {"1", "2"}) {
    const std::string with = std::string(" --set training_config.num_threads=") + threads;
    ASSERT_NO_FATAL_FAILURE(train("a", kSaving + with));
    ASSERT_NO_FATAL_FAILURE(train("b", kSaving + with));
    EXPECT_EQ(metrics("a"), metrics("b"));
    EXPECT_THAT(metrics("a"), ::testing::HasSubstr("layers.1.attention.wq.weight"));
    for (const char* file : {kWeights, "/weights_step_1.safetensors", "/weights_step_3.safetensors",
                             "/grads_step_2.safetensors"}) {
      ASSERT_FALSE(dir_.read(std::string("a") + file).empty()) << file;
      EXPECT_TRUE(dir_.read(std::string("a") + file) == dir_.read(std::string("b") + file)) << file;
    }
  }
}

// The states in fewer bytes, whose rounding draws random numbers, and updates during backward.
TEST_F(DeterminismTest, LeanStatesRepeatAndTrainAlike) {
  const std::string lean =
      kSaving +
      "--set optimizer_config.exp_avg_dtype=bfloat16 --set "
      "optimizer_config.exp_avg_sq_dtype=bfloat16 --set optimizer_config.main_grads_dtype=bfloat16";
  const std::string early =
      "--set training_config.save_interval=3 --set optimizer_config.exp_avg_dtype=bfloat16 --set "
      "optimizer_config.optimizer_in_backward=True --set optimizer_config.clip_grad=0 --set "
      "dataset_config.micro_batch_num=1";
  ASSERT_NO_FATAL_FAILURE(train("plain", kSaving));
  const double expected = step("plain", 3).at("loss").get<double>();
  for (const std::string& arguments : {lean, early}) {
    ASSERT_NO_FATAL_FAILURE(train("a", arguments));
    ASSERT_NO_FATAL_FAILURE(train("b", arguments));
    EXPECT_EQ(metrics("a"), metrics("b"));
    EXPECT_TRUE(dir_.read(std::string("a") + kWeights) == dir_.read(std::string("b") + kWeights));
    EXPECT_NEAR(step("a", 3).at("loss").get<double>(), expected, 0.02 * expected);
    EXPECT_TRUE(dir_.read(std::string("a") + kWeights) !=
                dir_.read(std::string("plain") + kWeights));
    const Json memory = step("a", 3).at("memory");
    const Json plain = step("plain", 3).at("memory");
    EXPECT_LT(memory.at("optimizer").at("current_bytes").get<int64_t>(),
              plain.at("optimizer").at("current_bytes").get<int64_t>());
    EXPECT_LT(memory.at("gradients").at("current_bytes").get<int64_t>(),
              plain.at("gradients").at("current_bytes").get<int64_t>());
  }
  EXPECT_THAT(dir_.read("a/log/rank_0/info.log"), ::testing::HasSubstr("memory: parameters "));
}

TEST_F(DeterminismTest, AnotherSeedGivesAnotherRun) {
  ASSERT_NO_FATAL_FAILURE(train("a", kSaving));
  ASSERT_NO_FATAL_FAILURE(train("b", kSaving + "--set training_config.seed=8"));
  EXPECT_NE(metrics("a"), metrics("b"));
  EXPECT_FALSE(dir_.read(std::string("a") + kWeights) == dir_.read(std::string("b") + kWeights));
}

TEST_F(DeterminismTest, TheNumberOfThreadsChangesNeitherInitialWeightsNorDropout) {
  // A warm-up from zero: the first update has learning rate 0, so the weights after it are the
  // initial ones; without decay they are so to the bit.
  const std::string first_step =
      "--set training_config.dump_weight_steps=[1] --set optimizer_config.lr_warmup_iters=2 "
      "--set optimizer_config.lr_warmup_init=0 --set optimizer_config.weight_decay=0 "
      "--set optimizer_config.lr_decay_style=constant --set training_config.num_threads=";
  ASSERT_NO_FATAL_FAILURE(train("one", first_step + "1"));
  ASSERT_NO_FATAL_FAILURE(train("two", first_step + "2"));
  ASSERT_NO_FATAL_FAILURE(train("none", first_step + "1 --set model_config.hidden_dropout=0 --set "
                                                     "model_config.attention_dropout=0"));
  ASSERT_EQ(step("one", 1).at("lr").at(0).get<double>(), 0.0);
  const std::string weights = dir_.read("one/weights_step_1.safetensors");
  ASSERT_FALSE(weights.empty());
  EXPECT_TRUE(weights == dir_.read("two/weights_step_1.safetensors"));

  const double one = step("one", 1).at("loss").get<double>();
  const double norm = step("one", 1).at("grad_norm").get<double>();
  EXPECT_NEAR(step("two", 1).at("loss").get<double>(), one, 1e-6 * one);
  EXPECT_NEAR(step("two", 1).at("grad_norm").get<double>(), norm, 1e-5 * norm);
  // One mask that differs would show: dropout as a whole changes these far more.
  EXPECT_GT(std::abs(step("none", 1).at("loss").get<double>() - one), 1e-5 * one);
  EXPECT_GT(std::abs(step("none", 1).at("grad_norm").get<double>() - norm), 1e-3 * norm);
}

}  // namespace
}  // namespace tapestry::determinism_test
