// A run's own config.yaml as the next run's file: nothing in it is worth a remark.
#include <filesystem>

#include "autograd/tensor/error.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ResolvedConfigTest : public ProgramTest {};

TEST_F(ResolvedConfigTest, SaysNothingOfWhatHasNoEffect) {
  prepare_text();
  struct Row {
    const char* options;
    const char* said;  // of the first run, whose options the user has written
  };
  const std::vector<Row> rows = {
      {"", ""},
      {"--set training_config.bf16=True --set training_config.use_clip_grad=True", ""},
      {"--set lora_config.use_dora=True --set tensorboard.histogram_interval=2 "
       "--set parallel_config.sequence_parallel=True",
       "no effect without use_lora"},
      {"--set optimizer_config.optimizer_type=SGD --set 'optimizer_config.betas=[0.8, 0.9]'",
       "has no effect with ... optimizer_type SGD"},
      {"--set moe_config.num_experts=2 --set moe_config.moe_router_topk=1 "
       "--set moe_config.moe_router_pre_softmax=True "
       "--set moe_config.moe_token_drop_policy=position",
       "has no effect without moe_expert_capacity_factor"},
      {"--set tensorboard.tensorboard_dir=board --set monitor_config.monitor_on=True", ""}};
  for (const Row& row : rows) {
    dir_.write("run.yaml", kTinyRun);
    std::filesystem::remove_all(dir_.file("output"));
    ASSERT_EQ(pretrain(concat("--config_path run.yaml ", row.options)), 0) << said();
    EXPECT_THAT(out_, Says(row.said)) << row.options;
    ASSERT_EQ(pretrain("--config_path output/config.yaml --dry_run --overwrite"), 0)
        << row.options << "\n"
        << said();
    EXPECT_THAT(out_, Not(HasSubstr("no effect"))) << row.options;
    EXPECT_THAT(err_, Not(HasSubstr("no effect"))) << row.options;
  }
}

// Folders are named in it as they are.
TEST_F(ResolvedConfigTest, FoldersMayHaveAnyName) {
  prepare_text();
  dir_.write("run.yaml", kTinyRun);
  ASSERT_EQ(pretrain(R"(--config_path run.yaml --set 'training_config.output_dir="a $$HOME\nb"')"),
            0)
      << said();
  const std::string folder = "a $HOME\nb";
  EXPECT_TRUE(std::filesystem::exists(dir_.file(folder + "/config.yaml")));
  std::filesystem::copy_file(dir_.file(folder + "/config.yaml"), dir_.file("again.yaml"));
  ASSERT_EQ(pretrain("--config_path again.yaml --overwrite"), 0) << said();
  EXPECT_TRUE(std::filesystem::exists(dir_.file(folder + "/old/run_1/metrics.jsonl")));
}

}  // namespace
}  // namespace tapestry
