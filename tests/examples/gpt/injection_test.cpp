// Options of pretrain_gpt that take values of a reference, and tests that train.
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

class InjectionProgram : public ProgramTest {
 protected:
  void SetUp() override {
    prepare_text();
    dir_.write("run.yaml", kTinyRun);
  }
  int train(const std::string& output, const std::string& arguments) {
    return pretrain("--config_path run.yaml --set training_config.output_dir=" + output + " " +
                    arguments);
  }
  void write_dump_configuration(const std::string& name) {
    dir_.write(name + ".json", R"({"common_dump_settings": {"path": ")" + dir_.file(name) +
                                   R"(", "dump_mode": 1, "kernels": ["Value", "Parameter"]},)" +
                                   R"("e2e_dump_settings": {}})");
  }
};

TEST_F(InjectionProgram, TakesWeightsGradientsAndInputsOfADump) {
  write_dump_configuration("reference");
  ASSERT_EQ(train("first", "--dump reference.json"), 0) << said();
  // Other start weights, which those of the dump take the place of.
  const std::string other = "--set model_config.init_method_std=0.5 ";
  ASSERT_EQ(train("weights", other + "--inject_weights reference"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("weights are those of reference"));
  EXPECT_EQ(steps("weights")[0]["loss"], steps("first")[0]["loss"]);
  ASSERT_EQ(train("grads", other + "--inject_grads reference"), 0) << said();
  EXPECT_THAT(out_, Says("inject_grads: ... 3 ... given gradients"));
  EXPECT_EQ(steps("grads")[0]["grad_norm"], steps("first")[0]["grad_norm"]);
  ASSERT_EQ(train("inputs", "--inject_inputs reference"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("inject_inputs: in step 3 "));
  EXPECT_EQ(train("inputs", "--overwrite --inject_inputs first"), 2) << said();
}

TEST_F(InjectionProgram, TestsThatTrainEndInAVerdict) {
  EXPECT_EQ(train("a", "--twice 2 --json twice.json --html twice.html"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("twice: agree"));
  EXPECT_EQ(nlohmann::json::parse(dir_.read("twice.json"))["verdict"], "agree");
  EXPECT_THAT(dir_.read("twice.html"), HasSubstr("<html"));
  EXPECT_EQ(train("b", "--lr_zero 5"), 0) << said();
  EXPECT_EQ(steps("b").size(), 5U);
  EXPECT_EQ(train("c", "--op_error linear"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("op_error: agree"));
  EXPECT_EQ(train("d", "--op_error no_such_op"), 2) << said();
}

TEST_F(InjectionProgram, RefusesWhatMakesNoSense) {
  const auto refused = [&](const std::string& arguments, const std::string& message) {
    EXPECT_EQ(train("refused", arguments), 2) << arguments << said();
    EXPECT_THAT(err_, Says(message)) << arguments;
  };
  refused("--twice 0", "--twice is 0");
  refused("--twice 2 --lr_zero 2", "exclude each other");
  refused("--dry_run --inject_grads nowhere", "--dry_run and --inject_grads exclude each other");
  refused("--inject_data nowhere", "inject_data: 'nowhere' is no folder");
  refused("--inject_grads nowhere", "nowhere");
  refused("--inject_inputs nowhere", "nowhere");
  refused("--map names.yaml", "has no effect");
  refused("--json out.json", "no report without");
  refused("--op_error '('", "no regular expression");
  refused("--op_error linear --op_error_multiple 0.5", "expected a number from ... 1");
}

}  // namespace
}  // namespace tapestry
