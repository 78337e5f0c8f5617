// generate under mpirun: every layout prints what one process does.
#include "tests/examples/gpt/hf_folders.h"

namespace tapestry::hf_test {
namespace {

class GenerateLayouts : public HfTest {
 protected:
  void SetUp() override {
    write_llama("llama", "llama");
    dir_.write("p.jsonl",
               "{\"prompt\": \"And the king\"}\n{\"prompt\": \"looked\"}\n{\"prompt\": \"a\"}\n");
  }
  int under_mpirun(int ranks, const std::string& arguments) {
    return run(std::string(TAPESTRY_MPIEXEC) + " --oversubscribe -n " + std::to_string(ranks) +
                   " " TAPESTRY_GENERATE,
               arguments);
  }
};

TEST_F(GenerateLayouts, PrintTheTextOfOneProcess) {
  const std::string ask =
      "--checkpoint llama --prompts p.jsonl --max_new_tokens 10 --seed 3 --threads 1";
  ASSERT_EQ(generate(ask), 0) << said();
  const std::string expected = out_;
  for (const auto& [ranks, layout] :
       {std::pair{2, " --tensor_parallel 2"}, std::pair{2, " --pipeline_parallel 2"},
        std::pair{4, " --tensor_parallel 2 --pipeline_parallel 2"}}) {
    ASSERT_EQ(under_mpirun(ranks, ask + layout), 0) << said();
    EXPECT_EQ(out_, expected) << layout;
  }
  ASSERT_EQ(generate("--checkpoint llama --prompt And --temperature 0 --threads 1"), 0);
  const std::string text = out_;
  ASSERT_EQ(under_mpirun(2,
                         "--checkpoint llama --prompt And --temperature 0 --threads 1 --stream "
                         "--pipeline_parallel 2"),
            0)
      << said();
  EXPECT_EQ(out_, text);
}

TEST_F(GenerateLayouts, ErrorsAreSaidOnce) {
  EXPECT_EQ(under_mpirun(2, "--checkpoint llama --prompt And"), 2) << said();
  EXPECT_THAT(err_, ::testing::HasSubstr("need 1 processes, but there are 2"));
  EXPECT_EQ(under_mpirun(2, "--checkpoint none --prompt And --tensor_parallel 2"), 2) << said();
  EXPECT_EQ(out_, "");
}

}  // namespace
}  // namespace tapestry::hf_test
