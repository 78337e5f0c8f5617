#include "parallel_core/estimates/time_estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/rank_context.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/training/files/disk_room.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace time_estimate_test {
namespace {

using ::testing::HasSubstr;
using testing::joined;
using testing::Overrides;
using testing::small_config;

StepWork work_of(const Overrides& overrides, int64_t data_parallel_size = 1) {
  return step_work(small_config(overrides), data_parallel_size);
}

// 2 layers of hidden 32, ffn 48, 4 heads of 8; vocabulary 31, 8 tokens a sequence.
TEST(TimeEstimate, CountsProducts) {
  const double layer = 2 * (4 * 32 * 32 + 2 * 32 * 48) + 4 * (8.0 / 2) * 32;
  const double head = 2 * 32 * 31;
  EXPECT_DOUBLE_EQ(work_of({}).flops, 3 * 8 * (2 * layer + head));
  EXPECT_DOUBLE_EQ(
      work_of({"dataset_config.batch_size=3", "dataset_config.micro_batch_num=5"}).flops,
      15 * 3 * 8 * (2 * layer + head));
  const double gated = layer + 2 * 32 * 48;
  EXPECT_DOUBLE_EQ(work_of({"model_config.hidden_act=swiglu"}).flops, 3 * 8 * (2 * gated + head));
  // Other sequences are other ranks' work.
  EXPECT_DOUBLE_EQ(work_of({}, 4).flops, work_of({}).flops);
}

TEST(TimeEstimate, CountsLayersThatPredictFurtherTokens) {
  const Overrides rope = {"model_config.position_embedding_type=rope", "model_config.num_layers=4"};
  const Overrides ahead = joined(rope, {"model_config.mtp_num_layers=2"});
  const double layer = 2 * (4 * 32 * 32 + 2 * 32 * 48) + 4 * (8.0 / 2) * 32;
  const double more = 3 * 8 * 2 * (layer + 2 * 32 * 64 + 2 * 32 * 31);
  EXPECT_DOUBLE_EQ(work_of(ahead).flops, work_of(rope).flops + more);
  EXPECT_DOUBLE_EQ(model_flops(small_config(ahead), 1), work_of(ahead).flops);
  // They are of the last stage.
  const Overrides two = {"parallel_config.pipeline_model_parallel_size=2"};
  EXPECT_DOUBLE_EQ(work_of(joined(ahead, two)).flops, work_of(joined(rope, two)).flops + more);
}

// A list has a number for each layer of the model, and none for what is not there.
TEST(TimeEstimate, CountsMixturesThatAListNames) {
  const Overrides mixture = {"moe_config.num_experts=4", "moe_config.moe_router_topk=2",
                             "moe_config.moe_layer_freq=[0, 1]"};
  const double attention = 2 * 4 * 32 * 32 + 4 * (8.0 / 2) * 32;
  const double dense = 2 * 2 * 32 * 48;
  EXPECT_DOUBLE_EQ(work_of(mixture).flops,
                   3 * 8 * (2 * attention + dense + 2 * dense + 2 * 32 * 4 + 2 * 32 * 31));
}

TEST(TimeEstimate, CountsTheModelsProductsWhateverTheLayout) {
  const auto config = small_config({"dataset_config.micro_batch_num=4"});
  const double one = work_of({"dataset_config.micro_batch_num=4"}).flops;
  EXPECT_DOUBLE_EQ(model_flops(config, 1), one);
  EXPECT_DOUBLE_EQ(model_flops(config, 3), 3 * one);
  const auto staged = small_config({"dataset_config.micro_batch_num=4",
                                    "parallel_config.pipeline_model_parallel_size=2",
                                    "parallel_config.tensor_model_parallel_size=2"});
  EXPECT_DOUBLE_EQ(model_flops(staged, 1), one);
}

TEST(TimeEstimate, SharesTheWorkOfALayout) {
  const Overrides batches = {"dataset_config.micro_batch_num=4", "model_config.num_layers=4"};
  const StepWork whole = work_of(batches);
  EXPECT_DOUBLE_EQ(work_of(joined(batches, {"parallel_config.tensor_model_parallel_size=2"})).flops,
                   whole.flops / 2);
  EXPECT_DOUBLE_EQ(work_of(joined(batches, {"parallel_config.context_parallel_size=2"})).flops,
                   whole.flops / 2);
  const StepWork stage =
      work_of(joined(batches, {"parallel_config.pipeline_model_parallel_size=2"}));
  EXPECT_GT(stage.flops, whole.flops / 2);  // one stage has the head
  EXPECT_LT(stage.flops, whole.flops);
  EXPECT_EQ(whole.bubble, 0);
  EXPECT_DOUBLE_EQ(stage.bubble, 1.0 / 5);  // (stages - 1) of micro-batches + stages - 1
  EXPECT_EQ(stage.passes, 4 * 2);
  EXPECT_EQ(whole.passes, 4 * 4);
}

TEST(TimeEstimate, MoreOfEachTakesLonger) {
  const MachineSpeed speed{.flops = 1e9, .bytes = 1e9};
  const double base = step_seconds({.flops = 1e9, .bytes = 1e9, .passes = 10}, speed);
  EXPECT_NEAR(base, 1 / 0.7 + 1, 0.01);
  EXPECT_NEAR(step_seconds({.flops = 2.4e9, .bytes = 1e9, .passes = 10}, speed), base + 2, 1e-9);
  EXPECT_NEAR(step_seconds({.flops = 1e9, .bytes = 2e9, .passes = 10}, speed), base + 1, 1e-9);
  EXPECT_GT(step_seconds({.flops = 1e9, .bytes = 1e9, .passes = 1000}, speed), base);
  EXPECT_NEAR(step_seconds({.flops = 1e9, .bytes = 1e9, .passes = 10, .bubble = 0.5}, speed),
              2 * base, 1e-9);
}

TEST(TimeEstimate, SaysHowItCameAbout) {
  const StepWork work{.flops = 70e9, .bytes = 2e9, .passes = 4};
  const std::string text = time_text(work, {.flops = 1e12, .bytes = 20e9}, 500);
  EXPECT_THAT(text, HasSubstr("200 ms a step, 1:40 for 500 steps; estimated from 70 GFLOP of "
                              "matrix products at 70 % of 1e+03 GFLOP/s and 2 GB through memory "
                              "at 20 GB/s"));
  EXPECT_THAT(time_text(work, {.flops = 1e9, .bytes = 1e9}, 0),
              ::testing::StartsWith("102 s a step; estimated"));
}

TEST(TimeEstimate, MeasuresThisMachine) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const MachineSpeed speed =
        measure_speed(small_config({std::string("model_config.compute_dtype=") + dtype}));
    EXPECT_GT(speed.flops, 0);
    EXPECT_GT(speed.bytes, 0);
    EXPECT_TRUE(std::isfinite(speed.flops) && std::isfinite(speed.bytes));
  }
}

// At the start of a run, where the first steps take longer than the measurement.
TEST(ExpectedTime, IsMeasuredWhereItHelps) {
  constexpr int64_t kPlenty = int64_t{1} << 40;
  EXPECT_EQ(expected_time(small_config(), 1, 1, kPlenty), "");
  const AllConfig large = small_config({"dataset_config.batch_size=20000"});
  const std::string text = expected_time(large, 1, 1, kPlenty);
  EXPECT_THAT(text,
              ::testing::ContainsRegex("^about [0-9.]+ m?s a step, .* for 20 steps, estimated; "
                                       "the measured time follows after step 3$"));
  EXPECT_THAT(expected_time(large, 1, 2, kPlenty), HasSubstr("estimated without communication;"));
  EXPECT_EQ(expected_time(large, 1, 1, 1 << 20), "");  // no room to measure in
  const MemoryStats stats = RankContext::current().allocator().stats();
  EXPECT_LT(stats.reserved_bytes, 1 << 24);  // what was measured with is given back
}

TEST(CheckpointSize, IsWhatTheRunHasAtOneTime) {
  const int64_t parameters = parameter_count(small_config().model_config);
  const int64_t one = 12 * parameters;  // AdamW
  const auto count = [&](const Overrides& overrides) {
    const CheckpointSize size = checkpoint_size(small_config(overrides), 1);
    EXPECT_EQ(size.one, one);
    EXPECT_EQ(size.at_most, size.count * one);
    return size.count;
  };
  EXPECT_EQ(count({}), 1);
  EXPECT_EQ(count({"training_config.save_last=False"}), 0);
  EXPECT_EQ(count({"training_config.save_interval=10"}), 2);  // of 20 steps
  EXPECT_EQ(count({"training_config.save_interval=1"}), 6);   // five, and a new one
  EXPECT_EQ(count({"training_config.save_interval=1", "training_config.keep_checkpoint_max=1"}), 2);
  EXPECT_EQ(count({"training_config.save_interval=15", "training_config.save_last=False"}), 1);
  EXPECT_EQ(count({"training_config.save_interval=15", "training_config.training_iters=0",
                   "training_config.epochs=1"}),
            6);
  EXPECT_EQ(count({"training_config.save_interval_seconds=60"}), 6);

  const auto bytes = [&](const Overrides& overrides) {
    return checkpoint_size(small_config(overrides), 1).one / parameters;
  };
  EXPECT_EQ(bytes({"optimizer_config.exp_avg_dtype=bfloat16"}), 10);
  EXPECT_EQ(bytes({"optimizer_config.optimizer_type=SGD"}), 4);
  EXPECT_EQ(bytes({"optimizer_config.optimizer_type=SGD", "optimizer_config.momentum=0.9"}), 8);
}

}  // namespace
}  // namespace time_estimate_test
}  // namespace tapestry
