// pretrain_gpt --plan: what it prints and writes, and that it starts.
#include <cstdlib>

#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class PlanProgram : public ProgramTest {
 protected:
  void SetUp() override {
    prepare_text();
    dir_.write("run.yaml", std::string(kTinyRun) + "parallel_config:\n  data_parallel_size: 2\n");
  }

  int plan(const std::string& words) {
    return pretrain("--config_path run.yaml --costs costs.json " + words);
  }

  // The losses of a run, as they stand in its metrics.
  std::vector<double> losses(const std::string& output) const {
    std::vector<double> all;
    for (const nlohmann::json& line : steps(output)) {
      all.push_back(line.at("loss").get<double>());
    }
    return all;
  }
};

TEST_F(PlanProgram, WritesAConfigurationThatTrainsAsTheOriginal) {
  const std::string exact = " --set training_config.exact=True";
  ASSERT_EQ(plan("--plan 1 --to planned.yaml --table table.csv" + exact), 0) << said();
  EXPECT_THAT(out_, Says("a batch of 4 sequences ... layout ... expected: ... wrote planned.yaml"));
  EXPECT_THAT(out_, EndsWith("plan: ranks=1\n"));
  EXPECT_THAT(dir_.read("planned.yaml"), HasSubstr("# plan: ranks=1 of 1 on 1 host"));
  EXPECT_THAT(dir_.read("table.csv"), HasSubstr("one rank;"));
  ASSERT_EQ(pretrain("--config_path planned.yaml --set training_config.output_dir=planned"), 0)
      << said();
  ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.output_dir=whole "
                     "--set dataset_config.micro_batch_num=2 "
                     "--set parallel_config.data_parallel_size=1" +
                     exact),
            0)
      << said();
  EXPECT_EQ(losses("planned").size(), 3);
  EXPECT_EQ(losses("planned"), losses("whole"));
  // What was measured is there for the next plan, and the file that was written is not lost.
  const std::string costs = dir_.read("costs.json");
  ASSERT_EQ(plan("--plan 1" + exact), 0) << said();
  EXPECT_EQ(dir_.read("costs.json"), costs);
  EXPECT_EQ(plan("--plan 1 --to planned.yaml" + exact), 2) << said();
  EXPECT_THAT(err_, Says("planned.yaml ... is there already"));
}

TEST_F(PlanProgram, GoesOnWithTheBatchOfARun) {
  ASSERT_EQ(pretrain("--config_path run.yaml --set parallel_config.data_parallel_size=null "
                     "--set training_config.save_interval=2"),
            0)
      << said();
  ASSERT_EQ(pretrain("--resume output --plan 2 --costs costs.json"), 0) << said();
  EXPECT_THAT(out_, Says("a batch of 2 sequences"));
  EXPECT_THAT(out_, EndsWith("plan: ranks=2\n"));
}

TEST_F(PlanProgram, SaysWhatStandsInTheWay) {
  EXPECT_EQ(plan("--plan 2 --memory 0.001"), 2) << said();
  EXPECT_THAT(err_, Says("no layout fits into ... the least needs"));
  EXPECT_EQ(plan("--plan 0"), 2);
  EXPECT_THAT(err_, Says("--plan is 0; expected 1 to"));
  EXPECT_EQ(plan("--plan 3 --hosts 2"), 2);
  EXPECT_THAT(err_, Says("--hosts 2 ... a multiple of 2"));
  EXPECT_EQ(pretrain("--config_path run.yaml --memory 3"), 2);
  EXPECT_THAT(err_, Says("--memory belongs to --plan RANKS"));
  EXPECT_EQ(plan("--plan 2 --dry_run"), 2);
  EXPECT_THAT(err_, Says("--plan and --dry_run exclude each other"));
  EXPECT_EQ(plan("--plan 2 --memory -1"), 2);
  EXPECT_THAT(err_, Says("--memory is -1"));
}

}  // namespace
}  // namespace tapestry
