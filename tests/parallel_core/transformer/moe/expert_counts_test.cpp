// tokens_per_expert.jsonl: what its lines say, in all layouts and after a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/json.h"
#include "parallel_core/training/watch/expert_counts_file.h"
#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/transformer/moe/mixture_testing.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using testing::joined;
using testing::Overrides;

using Counts = std::vector<std::vector<int64_t>>;  // [micro-batches of the global batch][E]

const Overrides kCounted = {"model_config.position_embedding_type=rope",
                            "model_config.mtp_num_layers=1",
                            "model_config.num_layers=4",
                            "monitor_config.save_tokens_per_expert_interval=1",
                            "moe_config.num_experts=4",
                            "moe_config.moe_router_topk=2",
                            "moe_config.moe_ffn_hidden_size=24"};
constexpr int64_t kMicroBatches = 4;

// Counts of a step's micro-batches by layer, rank r of R having those of number r, r + R, ..
std::map<int64_t, Counts> counts_on_this_rank(const Overrides& layout,
                                              const testing::State& weights) {
  testing::Trainer trainer(testing::small_config(joined(kCounted, layout)), weights);
  const bool split = model_parallel_is_initialized();
  const int ranks = split ? get_data_parallel_world_size() : 1;
  std::vector<data::Batch> batches;
  for (int64_t i = split ? get_data_parallel_rank() : 0; i < kMicroBatches; i += ranks) {
    batches.push_back(testing::two_rows(trainer.config, 2 * i));
  }
  const StepResult result = trainer.cell(batches);
  std::map<int64_t, Counts> out;
  for (const auto& [layer, statistics] : result.moe.value().layers) {
    for (const auto& of_ranks : statistics.of_micro_batches) {
      out[layer].insert(out[layer].end(), of_ranks.begin(), of_ranks.end());
    }
    std::vector<int64_t> sum(4, 0);
    for (const auto& counts : out[layer]) {
      std::transform(counts.begin(), counts.end(), sum.begin(), sum.begin(), std::plus<>());
    }
    EXPECT_EQ(sum, statistics.tokens_per_expert) << layer;
  }
  return out;
}

TEST(ExpertCounts, AreTheSameInEveryLayout) {
  const testing::State weights = testing::moved_weights(kCounted);
  const auto alone = counts_on_this_rank({}, weights);
  ASSERT_EQ(alone.size(), 5U);  // with the layer ahead
  EXPECT_NE(alone.at(1).at(0), alone.at(1).at(1));
  const std::string parallel = "parallel_config.";
  struct Layout {
    ModelParallelSizes sizes;
    Overrides overrides;
  };
  const std::vector<Layout> layouts = {
      {{.pipeline_model_parallel_size = 2}, {parallel + "pipeline_model_parallel_size=2"}},
      {{.pipeline_model_parallel_size = 2,
        .virtual_pipeline_model_parallel_size = 2,
        .expert_model_parallel_size = 2},
       {parallel + "pipeline_model_parallel_size=2",
        parallel + "virtual_pipeline_model_parallel_size=2",
        parallel + "expert_model_parallel_size=2"}},
      {{.tensor_model_parallel_size = 2, .context_parallel_size = 2},
       {parallel + "tensor_model_parallel_size=2", parallel + "sequence_parallel=True",
        parallel + "context_parallel_size=2"}}};
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.overrides.back());
    testing::run_parallel(
        4, layout.sizes, [&] { EXPECT_EQ(counts_on_this_rank(layout.overrides, weights), alone); });
  }
}

FinishedStep counted_step(int64_t number) {
  FinishedStep step;
  step.record.step = number;
  MoEStepStatistics& moe = step.result.moe.emplace();
  moe.micro_batches = 3;
  for (const int64_t layer : {1, 3, 4}) {
    auto& counts = moe.layers[layer].of_micro_batches;
    for (int64_t i = 0; i < 3; ++i) {
      counts.push_back({{number, layer}, {i, 0}});  // two data-parallel ranks, two experts
    }
  }
  return step;
}

TEST(ExpertCounts, LinesAreThoseOfTheIntervalAndLayers) {
  const data::TempDir dir;
  AllConfig config = testing::small_config(joined(kCounted, {"moe_config.num_experts=2"}));
  config.training_config.output_dir = dir.path();
  config.monitor_config.save_tokens_per_expert_interval = 2;
  const auto lines = [&] {
    std::ifstream file(ExpertCountsFile::path_in(dir.path()));
    std::vector<std::string> out;
    for (std::string line; std::getline(file, line);) {
      out.push_back(line);
    }
    return out;
  };
  const auto write = [&](std::optional<int64_t> after, int64_t from, int64_t to) {
    ExpertCountsFile file(config, after);
    for (int64_t step = from; step <= to; ++step) {
      FinishedStep finished = counted_step(step);
      file.after(finished);
    }
  };
  write({}, 1, 2);
  const std::vector<std::string> all = lines();
  ASSERT_EQ(all.size(), 9U);  // after micro-batches 2, 4 and 6
  EXPECT_EQ(
      all[0],
      R"({"iter":2,"step":1,"micro_step":2,"block":"decoder","layer":1,"tpe":[[1,1],[1,0]]})");
  EXPECT_EQ(all[5], R"({"iter":4,"step":2,"micro_step":1,"block":"mtp","mtp_idx":0,"layer":4,)"
                    R"("tpe":[[2,4],[0,0]]})");
  // What comes after the checkpoint is written anew, another run starts with nothing.
  write(1, 2, 2);
  EXPECT_EQ(lines(), all);
  config.monitor_config.tokens_per_expert_layers = {2};
  write({}, 1, 2);
  EXPECT_EQ(lines().size(), 3U);
  config.monitor_config.tokens_per_expert_layers = {3, 4};
  write({}, 1, 2);
  EXPECT_EQ(lines().size(), 6U);
}

}  // namespace
}  // namespace tapestry
