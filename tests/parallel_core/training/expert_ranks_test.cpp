// Which numbers of ranks a layout of experts fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/pretrain.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

AllConfig layout_of_experts(const std::string& parallel) {
  return init_configs_from_text(
      "training_config: {training_iters: 1}\n"
      "model_config: {vocab_size: 32, num_layers: 2, num_attention_heads: 4, hidden_size: 16, "
      "ffn_hidden_size: 24, seq_length: 8}\n"
      "moe_config: {num_experts: 12}\n"
      "parallel_config:\n" +
          parallel,
      "f.yaml");
}

TEST(ExpertRanks, MustDivideThoseOfAStage) {
  const auto refused = [](const std::string& parallel, int ranks) {
    return message_of<ConfigError>([&] { check_expert_ranks(layout_of_experts(parallel), ranks); });
  };
  const std::string ep4 = "  expert_model_parallel_size: 4\n";
  EXPECT_THAT(refused(ep4, 2),
              AllOf(StartsWith("f.yaml:5:31: parallel_config.expert_model_parallel_size: "
                               "expert_model_parallel_size 4 x expert_tensor_parallel_size 1 does "
                               "not divide the 2 ranks of a pipeline stage (tensor 1 x context 1 x "
                               "data 2)"),
                    HasSubstr("lower one of the two, or start a multiple of 4 ranks")));
  EXPECT_THAT(refused(ep4 + "  tensor_model_parallel_size: 2\n", 4),
              HasSubstr("start a multiple of 8 ranks"));
  EXPECT_THAT(refused(ep4 + "  pipeline_model_parallel_size: 2\n", 4),
              HasSubstr("the 2 ranks of a pipeline stage"));
  EXPECT_THAT(refused("  expert_tensor_parallel_size: 3\n", 4),
              AllOf(StartsWith("f.yaml:5:32: parallel_config.expert_tensor_parallel_size: "),
                    HasSubstr("start a multiple of 3 ranks")));
}

// What is let through is what the grid of ranks takes, and the other way round.
TEST(ExpertRanks, AreWhatTheGridTakes) {
  const auto is_taken = [](const auto& make) {
    try {
      make();
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  int taken = 0;
  for (const int64_t tp : {1, 2}) {
    for (const int64_t cp : {1, 2}) {
      for (const int64_t ep : {1, 2, 4}) {
        for (const int64_t etp : {1, 2}) {
          const AllConfig config = layout_of_experts(
              concat("  tensor_model_parallel_size: ", tp, "\n  context_parallel_size: ", cp,
                     "\n  expert_model_parallel_size: ", ep,
                     "\n  expert_tensor_parallel_size: ", etp, "\n"));
          const bool fits = is_taken([&] { check_expert_ranks(config, 4); });
          const bool grid = is_taken([&] {
            run_thread_ranks(4, [&](const std::shared_ptr<ProcessGroup>& world) {
              initialize_model_parallel(model_parallel_sizes(config.parallel_config), world);
              destroy_model_parallel();
            });
          });
          EXPECT_EQ(fits, grid) << tp << " " << cp << " " << ep << " " << etp;
          taken += grid ? 1 : 0;
        }
      }
    }
  }
  EXPECT_EQ(taken, 20);  // all but ep=4, etp=2
}

TEST(ExpertRanks, GoToTheGrid) {
  const ModelParallelConfig given =
      layout_of_experts(
          "  tensor_model_parallel_size: 2\n  expert_tensor_parallel_size: 1\n"
          "  expert_parallel: 4\n")
          .parallel_config;
  EXPECT_EQ(model_parallel_sizes(given).expert_model_parallel_size, 4);
  EXPECT_EQ(model_parallel_sizes(given).expert_tensor_parallel_size, 1);
  EXPECT_THAT(layout_line(given, 2), HasSubstr(" | ep 4 | etp 1"));
  const ModelParallelConfig tp =
      layout_of_experts("  tensor_model_parallel_size: 2\n").parallel_config;
  EXPECT_EQ(model_parallel_sizes(tp).expert_tensor_parallel_size, 2);
  EXPECT_EQ(layout_line(tp, 1), "dp 1 | pp 1 | tp 2 | sp False | vpp None");
}

}  // namespace
}  // namespace tapestry
