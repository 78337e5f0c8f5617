#include "parallel_core/training/fitting_layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/config/init_configs.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30U;

AllConfig preset_7b(std::vector<std::string> overrides = {}) {
  return init_configs_from_yaml("examples/gpt/pretrain_gpt_7B.yaml",
                                {.overrides = std::move(overrides)});
}

// What the settings make of the run is what was promised of it.
void expect_true(const std::vector<FittingLayout>& layouts,
                 const std::vector<std::string>& overrides) {
  for (const FittingLayout& layout : layouts) {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), layout.settings.begin(), layout.settings.end());
    const AllConfig made = preset_7b(all);
    const ModelParallelConfig& p = made.parallel_config;
    const int64_t data = layout.ranks / p.tensor_model_parallel_size /
                         p.pipeline_model_parallel_size / p.context_parallel_size;
    EXPECT_EQ(estimate_memory(made, data).peak(), layout.bytes);
    EXPECT_LE(layout.bytes, layout.available);
    EXPECT_EQ(global_batch_size(made, data), 4);
  }
}

TEST(FittingLayouts, OfOneMachine) {
  const AllConfig config = preset_7b({"dataset_config.micro_batch_num=2"});
  const std::vector<FittingLayout> found = fitting_layouts(
      config,
      {.data_parallel_size = 2, .ranks = 2, .ranks_on_host = 2, .available = 11 * kGiB + kGiB / 2});
  ASSERT_EQ(found.size(), 3);
  EXPECT_EQ(found[0].ranks, 1);
  EXPECT_THAT(found[0].settings, ElementsAre("dataset_config.micro_batch_num=4"));
  EXPECT_EQ(found[0].available, 23 * kGiB);
  EXPECT_THAT(found[1].settings, ElementsAre("parallel_config.pipeline_model_parallel_size=2",
                                             "dataset_config.micro_batch_num=4"));
  EXPECT_THAT(found[2].settings, ElementsAre("parallel_config.tensor_model_parallel_size=2",
                                             "dataset_config.micro_batch_num=4"));
  EXPECT_FALSE(found[1].one_on_each_host);
  expect_true(found, {"dataset_config.micro_batch_num=2"});
}

TEST(FittingLayouts, OfSeveralMachinesAndWithRecomputation) {
  const std::vector<std::string> batch = {"dataset_config.micro_batch_num=4"};
  const std::vector<FittingLayout> found =
      fitting_layouts(preset_7b(batch), {.available = 9 * kGiB});
  ASSERT_FALSE(found.empty());
  for (const FittingLayout& layout : found) {
    EXPECT_TRUE(layout.one_on_each_host);
    EXPECT_EQ(layout.available, 9 * kGiB);
  }
  expect_true(found, batch);
  // z3 leaves a rank its activations: no layout divides those of a sequence but with recomputation.
  const std::vector<FittingLayout> small = fitting_layouts(preset_7b(batch), {.available = kGiB});
  expect_true(small, batch);
  EXPECT_THAT(fitting_layouts(preset_7b(batch), {.available = 1 << 20U}), IsEmpty());
}

TEST(FittingLayouts, AreToldWithTheShareOfARank) {
  const AllConfig config = preset_7b();
  const MemoryEstimate estimate = estimate_memory(config, 2);
  const std::string message = message_of<ValueError>([&] {
    check_memory(config, estimate,
                 {.data_parallel_size = 2,
                  .ranks = 2,
                  .ranks_on_host = 2,
                  .available = 11 * kGiB + kGiB / 2});
  });
  EXPECT_THAT(message, HasSubstr("one of 2 ranks needs about 13.4 GiB of memory, but 11.5 GiB are "
                                 "available to it, its share of 23.0 GiB for 2 ranks on this "
                                 "machine:\n"));
  EXPECT_THAT(message, Says("These layouts would fit on this machine, with the same batch of a "
                            "step:\n  RANKS=1 --set dataset_config.micro_batch_num=4: about 17.4 "
                            "GiB, 23.0 GiB are available\n  RANKS=2 --set "
                            "parallel_config.pipeline_model_parallel_size=2"));
  EXPECT_THAT(message, HasSubstr("What would help: "));
  const std::string alone = message_of<ValueError>(
      [&] { check_memory(config, estimate_memory(config, 1), {.available = 9 * kGiB}); });
  EXPECT_THAT(alone, HasSubstr("this configuration needs about 17.4 GiB of memory, but 9.0 GiB are "
                               "available:\n"));
  EXPECT_THAT(alone, HasSubstr("on several like it, a rank on each (HOSTFILE of pretrain_gpt.sh)"));
  EXPECT_THAT(alone, Not(HasSubstr("RANKS=1 ")));
  EXPECT_NO_THROW(check_memory(config, estimate, {.available = 14 * kGiB}));
}

}  // namespace
}  // namespace tapestry
