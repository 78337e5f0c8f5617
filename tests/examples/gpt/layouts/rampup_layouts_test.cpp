// A global batch that grows, on ranks that mpirun starts.
#include "autograd/tensor/error.h"
#include "tests/examples/gpt/run_program.h"

namespace tapestry {
namespace {

class RampupLayoutsTest : public ProgramTest {};

TEST_F(RampupLayoutsTest, EveryLayoutDrawsAndComputesTheSame) {
  prepare_text();
  dir_.write("run.yaml", replaced(replaced(kTinyRun, "training_iters: 3",
                                           "training_iters: 8\n  rampup_batch_size: [4, 4, 24]\n"
                                           "  save_last: False"),
                                  "num_layers: 1", "num_layers: 4"));
  const std::string options = " --config_path run.yaml --set training_config.output_dir=";
  ASSERT_EQ(pretrain(options + "one --set dataset_config.micro_batch_num=8"), 0) << said();
  const std::vector<nlohmann::json> one = steps("one");
  const std::pair<int, std::string> layouts[] = {
      {2, " --set dataset_config.micro_batch_num=4"},
      {4,
       " --set dataset_config.micro_batch_num=4 "
       "--set parallel_config.pipeline_model_parallel_size=2 --set parallel_config.zero_level=z3"},
      // Interleaved stages with numbers of micro-batches that they do not divide.
      {4,
       " --set dataset_config.micro_batch_num=8 --set "
       "parallel_config.tensor_model_parallel_size=2 --set "
       "parallel_config.pipeline_model_parallel_size=2 --set "
       "parallel_config.virtual_pipeline_model_parallel_size=2 --set dataset_config.batch_size=2"}};
  for (const auto& [ranks, layout] : layouts) {
    ASSERT_EQ(
        run(concat(TAPESTRY_MPIEXEC, " --oversubscribe -n ", ranks, " ", TAPESTRY_PRETRAIN_GPT),
            options + "many --overwrite" + layout),
        0)
        << said();
    const std::vector<nlohmann::json> many = steps("many");
    ASSERT_EQ(many.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(many[i].at("tokens"), one[i].at("tokens"));
      EXPECT_EQ(many[i].at("loss_tokens"), one[i].at("loss_tokens"));
      const double expected = one[i].at("loss");
      EXPECT_NEAR(many[i].at("loss").get<double>(), expected, 1e-5 * expected) << layout << i;
    }
  }
  EXPECT_EQ(one.front().at("tokens"), 4 * 16);
  EXPECT_EQ(one.back().at("tokens"), 16 * 16);
}

}  // namespace
}  // namespace tapestry
