// A disk that takes longer for a save than ranks wait for each other.
#include "autograd/tensor/error.h"
#include "tests/examples/gpt/run_program.h"

namespace tapestry::slow_disk_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SlowDisk : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    dir_.write("run.yaml", kTinyRun);
  }
  // Each call that the library slow_disk knows takes longer than two seconds, the limit of
  // patience.
  int train(const std::string& slow, const std::string& more = "") {
    return run(
        concat("TAPESTRY_COMM_TIMEOUT=2 SLOW_DISK_MS=2600 SLOW_DISK='", slow,
               "' " TAPESTRY_MPIEXEC " --oversubscribe -n 2 -x LD_PRELOAD=" TAPESTRY_SLOW_DISK
               " -x SLOW_DISK -x SLOW_DISK_MS -x TAPESTRY_COMM_TIMEOUT " TAPESTRY_PRETRAIN_GPT),
        "--config_path run.yaml" + more);
  }
};

// One rank's part, then what the first rank alone does while the other waits.
TEST_F(SlowDisk, EndsNoJobThatSaves) {
  ASSERT_EQ(train("1:model.safetensors;0:manifest.json"), 0) << said();
  EXPECT_THAT(err_,
              AllOf(HasSubstr("slow_disk: "), HasSubstr(".step_00000003.tmp/model.safetensors"),
                    HasSubstr("manifest.json")));
  EXPECT_THAT(out_, HasSubstr("saved ./output/checkpoint/step_00000003"));
  EXPECT_EQ(pretrain("--evaluate output"), 0) << said();
}

// What is not a save has the limit: a rank that hangs is not waited for.
TEST_F(SlowDisk, ButOneThatHangsElsewhere) {
  EXPECT_EQ(train("0:output/.config.yaml"), 1) << said();
  EXPECT_THAT(err_ + out_, HasSubstr("has heard nothing for 2 seconds"));
}

}  // namespace
}  // namespace tapestry::slow_disk_test
