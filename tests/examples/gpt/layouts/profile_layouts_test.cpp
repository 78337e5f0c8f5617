// A profile of ranks that are processes.
#include "tests/diagnosis/profile/trace_checks.h"
#include "tests/examples/gpt/run_program.h"

namespace tapestry {
namespace {

using Json = nlohmann::json;

class ProfileLayouts : public ProgramTest {};

TEST_F(ProfileLayouts, TensorAndPipelineRanksShareOneTrace) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  dir_.write("run.yaml", replaced(kTinyRun, "num_layers: 1", "num_layers: 2"));
  ASSERT_EQ(run(std::string(TAPESTRY_MPIEXEC) + " --oversubscribe -n 4 " TAPESTRY_PRETRAIN_GPT,
                "--config_path run.yaml --set training_config.profile=True"
                " --set training_config.profile_level=level1"
                " --set training_config.profile_step_start=2"
                " --set training_config.profile_communication=True"
                " --set training_config.profile_parallel_strategy=True"
                " --set training_config.profile_memory=True"
                " --set dataset_config.micro_batch_num=2"
                " --set parallel_config.tensor_model_parallel_size=2"
                " --set parallel_config.pipeline_model_parallel_size=2"),
            0)
      << said();
  const Json trace = Json::parse(dir_.read("output/profile/trace.json"));
  testing::expect_nested(trace);
  EXPECT_GE(testing::expect_whole_arrows(trace), 16);
  std::map<int, int> steps;
  int sent = 0;
  int messages = 0;
  for (const testing::TracedSlice& slice : testing::slices_of(trace)) {
    steps[slice.rank] += slice.category == "step" ? 1 : 0;
    sent += slice.name == "send" ? 1 : 0;
  }
  for (const Json& event : trace.at("traceEvents")) {
    messages += event.at("ph") == "s" && event.at("name") == "message" ? 1 : 0;
  }
  EXPECT_EQ(steps, (std::map<int, int>{{0, 2}, {1, 2}, {2, 2}, {3, 2}}));
  EXPECT_EQ(messages, sent);
  EXPECT_EQ(sent, 2 * 2 * 2 * 2);  // steps, micro-batches, ranks of a stage, both directions
  const Json layout = Json::parse(dir_.read("output/profile/parallel_strategy.json"));
  ASSERT_EQ(layout.at("ranks").size(), 4U);
  for (int rank = 0; rank < 4; ++rank) {
    const Json& own = layout.at("ranks")[static_cast<size_t>(rank)];
    EXPECT_EQ(own.at("tensor").at("rank"), rank % 2);
    EXPECT_EQ(own.at("pipeline").at("rank"), rank / 2);
    EXPECT_EQ(own.at("layers_of_chunks"),
              Json::parse(rank < 2 ? R"([{"first":0,"count":1}])" : R"([{"first":1,"count":1}])"));
  }
}

}  // namespace
}  // namespace tapestry
