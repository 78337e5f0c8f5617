// Runs with adapters under mpirun: they go on bit for bit, and in any other layout.
#include <gmock/gmock.h>

#include <cmath>
#include <string>

#include "tests/examples/gpt/adapter_run.h"

namespace tapestry::hf_test {
namespace {

namespace fs = std::filesystem;

struct AdapterLayout {
  const char* name;
  const char* arguments;
  int micro_batch_num = 2;
};

class AdapterLayouts : public AdapterRunTest, public ::testing::WithParamInterface<AdapterLayout> {
 protected:
  int pretrain_on_two(const std::string& arguments) {
    return run(std::string(TAPESTRY_MPIEXEC) + " --oversubscribe -n 2 " TAPESTRY_PRETRAIN_GPT,
               arguments + " --set dataset_config.micro_batch_num=" +
                   std::to_string(GetParam().micro_batch_num) + " " + GetParam().arguments);
  }
  void expect_same_losses(const std::string& found, const std::string& expected) const {
    const auto ours = steps(found);
    const auto theirs = steps(expected);
    ASSERT_FALSE(ours.empty());
    for (const auto& line : ours) {
      const auto& other = theirs.at(line.at("step").get<size_t>() - 1);
      const double loss = other.at("loss");
      EXPECT_NEAR(line.at("loss").get<double>(), loss, 1e-5 * loss) << line.at("step");
    }
  }
};

TEST_P(AdapterLayouts, GoOn) {
  write_gpt2("base");
  const std::string run =
      "--config_path run.yaml --from_hf base"
      " --set lora_config.modules_to_save=[ln_f] --set optimizer_config.eps=1e-4";
  const std::string go_on = "--set training_config.resume_training=";
  ASSERT_EQ(pretrain(run + to("one")), 0) << said();
  ASSERT_EQ(pretrain_on_two(run + to("full")), 0) << said();
  expect_same_losses("full", "one");
  copy("full", "half");
  fs::remove_all(dir_.file(step("half", 6)));
  ASSERT_EQ(pretrain_on_two(run + to("half") + go_on + "True"), 0) << said();
  expect_same_checkpoint(step("half", 6), step("full", 6));
  // What one process has saved, on two ranks, and the other way round.
  const auto elsewhere = [&](const std::string& from) {
    return " --set training_config.load_checkpoint=" + from + " " + go_on + "step_00000003";
  };
  ASSERT_EQ(pretrain_on_two(run + to("two_on") + elsewhere("one")), 0) << said();
  expect_same_losses("two_on", "one");
  ASSERT_EQ(pretrain(run + to("one_on") + elsewhere("full")), 0) << said();
  expect_same_losses("one_on", "full");
}

INSTANTIATE_TEST_SUITE_P(
    Two,
    AdapterLayouts,
    ::testing::Values(AdapterLayout{"tp2", "--set parallel_config.tensor_model_parallel_size=2"},
                      AdapterLayout{"tp2_sp",
                                    "--set parallel_config.tensor_model_parallel_size=2 "
                                    "--set parallel_config.sequence_parallel=True"},
                      AdapterLayout{"pp2", "--set parallel_config.pipeline_model_parallel_size=2"},
                      AdapterLayout{"cp2", "--set parallel_config.context_parallel_size=2"},
                      AdapterLayout{"z1", "--set parallel_config.zero_level=z1", 1},
                      AdapterLayout{"z2", "--set parallel_config.zero_level=z2", 1},
                      AdapterLayout{"z3", "--set parallel_config.zero_level=z3", 1}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tapestry::hf_test
