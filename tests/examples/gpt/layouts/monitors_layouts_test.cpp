// Monitors under mpirun: what ranks measure of their parts is what one process measures.
#include <cmath>

#include "tests/examples/gpt/run_program.h"

namespace tapestry {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Choice {
  const char* name;
  const char* arguments;
  const char* tag;  // of a state that it has for every matrix
};

class MonitorsLayoutsTest : public ProgramTest, public ::testing::WithParamInterface<Choice> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    dir_.write("run.yaml", replaced(kTinyRun, "num_layers: 1",
                                    "num_layers: 2\n  normalization: RMSNorm\n"
                                    // the gradient of a key's bias is zero, but for rounding
                                    "  qkv_has_bias: False") +
                               "monitor_config:\n  monitor_on: True\n");
  }
  int train(int ranks, const std::string& arguments) {
    const std::string program = ranks == 1 ? std::string(TAPESTRY_PRETRAIN_GPT)
                                           : concat(TAPESTRY_MPIEXEC, " --oversubscribe -n ", ranks,
                                                    " ", TAPESTRY_PRETRAIN_GPT);
    return run(program, concat("--config_path run.yaml --set dataset_config.batch_size=1 "
                               "--set training_config.save_last=False --set dataset_config."
                               "micro_batch_num=",
                               4 / std::max(1, ranks / 2), " ", arguments));
  }
  // The monitor's values of the last step, by tag.
  std::map<std::string, double> values(const std::string& output) const {
    return steps(output).back().at("monitor").get<std::map<std::string, double>>();
  }
};

TEST_P(MonitorsLayoutsTest, NormsOfStateAndWeightsAreThoseOfOneProcess) {
  const std::string options =
      std::string(GetParam().arguments) +
      " --set monitor_config.optimizer_state_format=log"
      " --set monitor_config.weight_state_format=log --set training_config.output_dir=";
  ASSERT_EQ(train(1, options + "one"), 0) << said();
  ASSERT_EQ(train(4, options + "many --set parallel_config.tensor_model_parallel_size=2 "
                               "--set parallel_config.zero_level=z2"),
            0)
      << said();
  const auto expected = values("one");
  const auto found = values("many");
  EXPECT_EQ(expected.count(concat(GetParam().tag,
                                  "/language_model.encoder.layers.1.mlp.mapping."
                                  "weight")),
            1U);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [tag, value] : expected) {
    ASSERT_EQ(found.count(tag), 1U) << tag;
    EXPECT_NEAR(found.at(tag), value, 1e-4 * value) << tag;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers,
    MonitorsLayoutsTest,
    ::testing::Values(
        Choice{"AdamW", "", "adam_v_norm"},
        Choice{"Lion", "--set optimizer_config.optimizer_type=Lion", "adam_m_norm"},
        Choice{"Came", "--set optimizer_config.optimizer_type=Came", "adam_m_norm"},
        Choice{"Muon",
               "--set optimizer_config.optimizer_type=Muon --set optimizer_config.ns_dtype=float32",
               "momentum_buffer_norm"}),
    [](const auto& info) { return std::string(info.param.name); });

// Of two ranks that did not take the very same time one is slower than their median.
TEST_F(MonitorsLayoutsTest, ASlowRankIsNamed) {
  const std::string rest = "--set parallel_config.pipeline_model_parallel_size=2 ";
  ASSERT_EQ(train(2, rest + "--set monitor_config.slow_rank_factor=1.0000001"), 0) << said();
  EXPECT_THAT(out_ + err_, ::testing::ContainsRegex(
                               "slow rank [01]: its passes took [0-9.]+ ms a step, [0-9.]+ times "
                               "the median of all ranks, over 1 steps"));
  EXPECT_EQ(steps().back().at("ranks").at("compute_ms").size(), 2U);
  ASSERT_EQ(train(2, rest + "--overwrite --set monitor_config.slow_rank_factor=1e9"), 0) << said();
  EXPECT_THAT(out_ + err_, ::testing::Not(HasSubstr("slow rank")));
}

// Weights that overflow: the stage nearest to the loss has the parameter that is named.
TEST_F(MonitorsLayoutsTest, ANumberThatIsNotFiniteIsTracedToItsStage) {
  EXPECT_EQ(train(2,
                  "--set parallel_config.pipeline_model_parallel_size=2 "
                  "--set optimizer_config.learning_rate=1e18 "
                  "--set check_for_nan_in_loss_and_grad=True"),
            1)
      << said();
  EXPECT_THAT(err_, AllOf(HasSubstr(", terminate training."), HasSubstr(", rank 1: "),
                          HasSubstr("nearest to the loss is language_model.encoder.final_norm")));
}

// A spike, whose loss and norm are numbers: the ranks of the capsule are then threads.
TEST_F(MonitorsLayoutsTest, ACapsuleOfRanksReplaysInOneProcess) {
  ASSERT_EQ(train(4,
                  "--set parallel_config.tensor_model_parallel_size=2 "
                  "--set parallel_config.pipeline_model_parallel_size=2 "
                  "--set training_config.training_iters=2 "
                  "--set optimizer_config.learning_rate=3.0 "
                  "--set training_config.loss_spike_threshold=1.01 "
                  "--set training_config.loss_spike_window=1"),
            1)  // with its weights thrown off, which it says
      << said();
  EXPECT_THAT(out_ + err_, HasSubstr("the run ends worse than it began"));
  std::filesystem::rename(dir_.file("output/capsule/step_2"), dir_.file("elsewhere"));
  EXPECT_EQ(pretrain("--replay elsewhere"), 0) << said();
  EXPECT_THAT(out_, AllOf(HasSubstr("pp 2 | tp 2"), HasSubstr("The recorded bits return.")));
}

}  // namespace
}  // namespace tapestry
