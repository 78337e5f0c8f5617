// pretrain_gpt --verify_layout: what it prints, and its exit codes.
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

class VerifyLayoutTest : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    dir_.write("run.yaml", kTinyRun);
  }
  int verify(const std::string& layout, const std::string& more = "") {
    return pretrain("--config_path run.yaml --verify_layout '" + layout + "' " + more);
  }
};

TEST_F(VerifyLayoutTest, ALayoutThatIsRight) {
  ASSERT_EQ(verify("tp=2,sp,dp=2,zero=z2,micro=2"), 0) << said();
  EXPECT_THAT(out_, Says("verify_layout: tp=2,sp,pp=1,dp=2,zero=z2,micro=2 ... 4 ... against one "
                         "process ... 3 steps\n"));
  EXPECT_THAT(out_, HasSubstr("\nupdated weights "));
  EXPECT_THAT(out_, Says("no difference above its ... bound\n"));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("output")));
}

TEST_F(VerifyLayoutTest, FromACheckpoint) {
  ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.save_interval=3"), 0) << said();
  ASSERT_EQ(verify("tp=2",
                   "--verify_steps 2 --set "
                   "training_config.load_checkpoint=output/checkpoint/step_00000003"),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("2 steps\n"));
}

TEST_F(VerifyLayoutTest, WhatIsNotPossible) {
  EXPECT_EQ(verify("tp=2,np=2"), 2);
  EXPECT_THAT(err_, HasSubstr("'np=2' is not known"));
  EXPECT_EQ(verify("pp=3"), 2);
  EXPECT_THAT(err_, HasSubstr("layer"));
  EXPECT_EQ(verify("tp=2,ep=2", "--set moe_config.num_experts=2"), 2);  // dp is 1
  EXPECT_THAT(err_, Says("expert_model_parallel_size 2 ... expert_tensor_parallel_size 2 ... does "
                         "not divide the ... 2"));
  EXPECT_EQ(verify("tp=2", "--verify_steps 0"), 2);
  EXPECT_THAT(err_, HasSubstr("0 steps"));
}

}  // namespace
}  // namespace tapestry
