#include "parallel_core/parallel_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/parallel_core/parallel_testing.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

class ParallelState : public ::testing::Test {
 protected:
  ParallelState() : guard_(context_) {}
  void expect_refused(const ModelParallelSizes& sizes, const std::string& text) {
    EXPECT_THAT([&] { initialize_model_parallel(sizes); },
                ::testing::ThrowsMessage<RuntimeError>(HasSubstr(text)));
    EXPECT_FALSE(model_parallel_is_initialized());
  }
  RankContext context_;
  RankContextGuard guard_;
};

TEST_F(ParallelState, OfAWorldOfOne) {
  EXPECT_FALSE(model_parallel_is_initialized());
  initialize_model_parallel();
  EXPECT_TRUE(model_parallel_is_initialized());
  EXPECT_EQ(get_tensor_model_parallel_world_size(), 1);
  EXPECT_EQ(get_pipeline_model_parallel_world_size(), 1);
  EXPECT_EQ(get_context_parallel_world_size(), 1);
  EXPECT_EQ(get_data_parallel_world_size(), 1);
  EXPECT_EQ(get_expert_model_parallel_world_size(), 1);
  EXPECT_EQ(get_tensor_model_parallel_rank(), 0);
  EXPECT_EQ(get_pipeline_model_parallel_rank(), 0);
  EXPECT_EQ(get_context_parallel_rank(), 0);
  EXPECT_EQ(get_data_parallel_rank(), 0);
  EXPECT_EQ(get_embedding_group().size(), 1);
  EXPECT_EQ(get_virtual_pipeline_model_parallel_rank(), std::nullopt);
  EXPECT_EQ(get_pipeline_model_parallel_next_rank(), 0);
  EXPECT_TRUE(is_pipeline_first_stage());
  EXPECT_TRUE(is_pipeline_last_stage());
  EXPECT_EQ(get_tensor_model_parallel_group().size(), 1);
  EXPECT_THAT([] { initialize_model_parallel(); },
              ::testing::ThrowsMessage<RuntimeError>(HasSubstr("exist already")));
  destroy_model_parallel();
  EXPECT_FALSE(model_parallel_is_initialized());
  EXPECT_NO_THROW(initialize_model_parallel());
}

TEST_F(ParallelState, BeforeItIsInitialised) {
  EXPECT_THROW(get_tensor_model_parallel_group(), RuntimeError);
  EXPECT_THROW(get_pipeline_model_parallel_group(), RuntimeError);
  EXPECT_THROW(get_context_parallel_group(), RuntimeError);
  EXPECT_THROW(get_expert_tensor_parallel_group(), RuntimeError);
  EXPECT_THROW(get_data_parallel_group(), RuntimeError);
  EXPECT_THROW(get_data_parallel_rank(), RuntimeError);
  EXPECT_THROW(is_pipeline_last_stage(), RuntimeError);
  EXPECT_NO_THROW(destroy_model_parallel());
}

TEST_F(ParallelState, SizesThatDoNotFit) {
  expect_refused({.tensor_model_parallel_size = 2}, "does not divide a world of 1");
  expect_refused({.context_parallel_size = 3}, "does not divide a world of 1");
  expect_refused({.expert_model_parallel_size = 2}, "does not divide the data parallel size 1");
  expect_refused({.virtual_pipeline_model_parallel_size = 2}, "virtual pipeline");
  expect_refused({.tensor_model_parallel_size = 0}, "tensor parallel size");
  expect_refused({.tensor_model_parallel_size = -1, .pipeline_model_parallel_size = -1},
                 "tensor parallel size");
  expect_refused({.context_parallel_size = -1}, "context parallel size");
  expect_refused({.expert_model_parallel_size = 0}, "expert parallel size");
  EXPECT_THROW(initialize_model_parallel({}, nullptr), RuntimeError);
}

TEST_F(ParallelState, BelongsToTheRank) {
  initialize_model_parallel();
  {
    RankContext other;
    const RankContextGuard guard(other);
    EXPECT_FALSE(model_parallel_is_initialized());
  }
  EXPECT_TRUE(model_parallel_is_initialized());
}

// The example of the reference: world 16, tp 2, pp 2, dp 4, ep 2.
TEST(ParallelStateOf16Ranks, HasTheGroupsOfTheDefaultOrder) {
  std::array<std::map<std::string, std::string>, 16> names;
  testing::run_parallel(16,
                        {.tensor_model_parallel_size = 2,
                         .pipeline_model_parallel_size = 2,
                         .expert_model_parallel_size = 2},
                        [&] {
                          auto& own = names[static_cast<size_t>(get_world_group().rank())];
                          own["tp"] = get_tensor_model_parallel_group().name();
                          own["dp"] = get_data_parallel_group().name();
                          own["dp-cp"] = get_data_parallel_group(true).name();
                          own["pp"] = get_pipeline_model_parallel_group().name();
                          own["ep"] = get_expert_model_parallel_group().name();
                          own["etp"] = get_expert_tensor_parallel_group().name();
                          own["tp-ep"] = get_tensor_and_expert_parallel_group().name();
                          own["dp/ep"] = get_data_modulo_expert_parallel_group().name();
                          own["mp"] = get_model_parallel_group().name();
                          own["mp-ep"] = get_model_parallel_group(true).name();
                          own["tp-dp"] = get_tensor_and_data_parallel_group().name();
                          own["emb"] = get_embedding_group().name();
                          EXPECT_EQ(is_pipeline_first_stage(), get_world_group().rank() < 8);
                        });
  EXPECT_EQ(names[1]["tp"], "tp-0-1");
  EXPECT_EQ(names[2]["tp"], "tp-2-3");
  EXPECT_EQ(names[0]["dp"], "dp-0-2-4-6");
  EXPECT_EQ(names[15]["dp"], "dp-9-11-13-15");
  EXPECT_EQ(names[0]["dp-cp"], "dp-cp-0-2-4-6");
  EXPECT_EQ(names[9]["pp"], "pp-1-9");
  EXPECT_EQ(names[0]["ep"], "ep-0-2");
  EXPECT_EQ(names[3]["ep"], "ep-1-3");
  EXPECT_EQ(names[5]["etp"], "etp-4-5");
  EXPECT_EQ(names[5]["tp-ep"], "tp-ep-4-5-6-7");
  EXPECT_EQ(names[7]["dp/ep"], "dp-independent_ep-3-7");
  EXPECT_EQ(names[8]["mp"], "tp-pp-0-1-8-9");
  EXPECT_EQ(names[0]["mp-ep"], "tp-ep-pp-0-1-2-3-8-9-10-11");
  EXPECT_EQ(names[0]["tp-dp"], "tp-dp-0-1-2-3-4-5-6-7");
  EXPECT_EQ(names[8]["emb"], "embedding-0-8");
}

// The groups of a rank's experts, etp, ep and edp, by rank of the world.
std::vector<std::string> expert_groups(int world, const ModelParallelSizes& sizes) {
  std::vector<std::string> groups(static_cast<size_t>(world));
  testing::run_parallel(world, sizes, [&] {
    EXPECT_EQ(get_expert_tensor_parallel_world_size() * get_expert_model_parallel_world_size() *
                  get_data_modulo_expert_parallel_world_size() *
                  get_pipeline_model_parallel_world_size(),
              world);
    groups[static_cast<size_t>(get_world_group().rank())] =
        get_expert_tensor_parallel_group().name() + " " + get_expert_model_parallel_group().name() +
        " " + get_data_modulo_expert_parallel_group().name();
  });
  return groups;
}

TEST(ParallelStateOfExperts, SliceExpertsAsTheDensePart) {
  const auto groups =
      expert_groups(8, {.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2});
  EXPECT_EQ(groups[0], "etp-0-1 ep-0-2 dp-independent_ep-0-4");
  EXPECT_EQ(groups[7], "etp-6-7 ep-5-7 dp-independent_ep-3-7");
}

TEST(ParallelStateOfExperts, AreAGridOfTheirOwnOverTheStage) {
  // tp 2, dp 2: whole experts on all four ranks, which tensor parallelism divides, too.
  auto groups = expert_groups(4, {.tensor_model_parallel_size = 2,
                                  .expert_model_parallel_size = 4,
                                  .expert_tensor_parallel_size = 1});
  EXPECT_EQ(groups[2], "etp-2 ep-0-1-2-3 dp-independent_ep-2");
  groups = expert_groups(2, {.tensor_model_parallel_size = 2, .expert_tensor_parallel_size = 1});
  EXPECT_EQ(groups[1], "etp-1 ep-1 dp-independent_ep-0-1");
  // dp 4 alone: slices of experts where nothing else is sliced.
  groups = expert_groups(4, {.expert_model_parallel_size = 2, .expert_tensor_parallel_size = 2});
  EXPECT_EQ(groups[3], "etp-2-3 ep-1-3 dp-independent_ep-3");
  // Context-parallel ranks are among those that experts are spread over.
  groups = expert_groups(8, {.pipeline_model_parallel_size = 2,
                             .context_parallel_size = 2,
                             .expert_model_parallel_size = 2});
  EXPECT_EQ(groups[0], "etp-0 ep-0-1 dp-independent_ep-0-2");
  EXPECT_EQ(groups[7], "etp-7 ep-6-7 dp-independent_ep-5-7");
}

TEST(ParallelStateOfExperts, FollowTheOrderOfTheAxes) {
  // Stages first: a stage's ranks are 0 2 4 6 and 1 3 5 7.
  auto groups = expert_groups(
      8, {.pipeline_model_parallel_size = 2, .expert_model_parallel_size = 2, .order = "pp-ep-dp"});
  EXPECT_EQ(groups[6], "etp-6 ep-4-6 dp-independent_ep-2-6");
  groups = expert_groups(
      8, {.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2, .order = "tp-dp-ep"});
  EXPECT_EQ(groups[7], "etp-6-7 ep-3-7 dp-independent_ep-5-7");
}

TEST(ParallelStateOfExperts, HaveRanksAndJointGroups) {
  testing::run_parallel(8,
                        {.tensor_model_parallel_size = 2,
                         .pipeline_model_parallel_size = 2,
                         .expert_model_parallel_size = 2,
                         .expert_tensor_parallel_size = 1},
                        [] {
                          const int rank = get_world_group().rank();
                          EXPECT_EQ(get_expert_tensor_parallel_rank(), 0);
                          EXPECT_EQ(get_expert_model_parallel_rank(), rank % 2);
                          EXPECT_EQ(get_data_modulo_expert_parallel_rank(), rank / 2 % 2);
                          EXPECT_EQ(get_tensor_and_expert_parallel_group().world_ranks(),
                                    (std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}));
                          const int first = rank % 4 / 2 * 2;
                          EXPECT_EQ(get_model_parallel_group(true).world_ranks(),
                                    (std::vector<int>{first, first + 1, first + 4, first + 5}));
                        });
}

TEST(ParallelStateOf12Ranks, ContextAndPipeline) {
  testing::run_parallel(
      12,
      {.pipeline_model_parallel_size = 3,
       .virtual_pipeline_model_parallel_size = 2,
       .context_parallel_size = 2},
      [] {  // rank = c + 2 (d + 2 p)
        const int rank = get_world_group().rank();
        EXPECT_EQ(get_context_parallel_rank(), rank % 2);
        EXPECT_EQ(get_data_parallel_rank(), rank / 2 % 2);
        EXPECT_EQ(get_data_parallel_world_size(), 2);
        EXPECT_EQ(get_data_parallel_world_size(true), 4);
        EXPECT_EQ(get_data_parallel_rank(true), rank % 4);
        EXPECT_EQ(get_pipeline_model_parallel_rank(), rank / 4);
        EXPECT_EQ(get_pipeline_model_parallel_next_rank(), (rank + 4) % 12);
        EXPECT_EQ(get_pipeline_model_parallel_prev_rank(), (rank + 8) % 12);
        EXPECT_EQ(get_pipeline_model_parallel_first_rank(), rank % 4);
        EXPECT_EQ(get_pipeline_model_parallel_last_rank(), rank % 4 + 8);
        EXPECT_EQ(get_cp_global_ranks(), (std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}));
        EXPECT_EQ(get_virtual_pipeline_model_parallel_world_size(), 2);
        EXPECT_EQ(get_virtual_pipeline_model_parallel_rank(), 0);
        EXPECT_EQ(is_pipeline_first_stage(), rank < 4);
        EXPECT_FALSE(is_pipeline_last_stage());
        EXPECT_EQ(is_pipeline_last_stage(/*ignore_virtual=*/true), rank >= 8);
        set_virtual_pipeline_model_parallel_rank(1);
        EXPECT_FALSE(is_pipeline_first_stage());
        EXPECT_EQ(is_pipeline_first_stage(/*ignore_virtual=*/true), rank < 4);
        EXPECT_EQ(is_pipeline_last_stage(), rank >= 8);
        EXPECT_EQ(is_rank_in_embedding_group(), rank >= 8);
        EXPECT_EQ(is_rank_in_embedding_group(/*ignore_virtual=*/true), rank < 4 || rank >= 8);
        EXPECT_THROW(set_virtual_pipeline_model_parallel_rank(2), RuntimeError);
        if (get_pipeline_model_parallel_rank() == 1) {
          EXPECT_THROW(get_embedding_group(), RuntimeError);
        } else {
          EXPECT_EQ(get_embedding_group().size(), 2);
        }
        if (rank < 4) {
          EXPECT_EQ(get_position_embedding_group().size(), 1);
        } else {
          EXPECT_THROW(get_position_embedding_group(), RuntimeError);
        }
      });
}

TEST(ParallelStateOf4Ranks, AnotherOrder) {
  testing::run_parallel(4, {.tensor_model_parallel_size = 2, .order = "dp-tp"}, [] {
    EXPECT_EQ(get_data_parallel_rank(), get_world_group().rank() % 2);
    EXPECT_EQ(get_tensor_model_parallel_rank(), get_world_group().rank() / 2);
  });
}

TEST(ParallelStateOf4Ranks, WhatIsImpossible) {
  const auto expect_refused = [](const ModelParallelSizes& sizes, const std::string& text) {
    EXPECT_THAT([&] { testing::run_parallel(4, sizes, [] {}); },
                ::testing::ThrowsMessage<RuntimeError>(HasSubstr(text)));
  };
  expect_refused({.tensor_model_parallel_size = 3}, "does not divide a world of 4 ranks");
  expect_refused({.tensor_model_parallel_size = 2, .expert_model_parallel_size = 4},
                 "does not divide the data parallel size 2");
  expect_refused({.context_parallel_size = 2, .expert_model_parallel_size = 8},
                 "expert parallel size 8 x expert tensor parallel size 1 does not divide the 4 "
                 "ranks of a pipeline stage (tensor 1 x context 2 x data 2)");
  expect_refused({.tensor_model_parallel_size = 2,
                  .expert_model_parallel_size = 2,
                  .expert_tensor_parallel_size = 4},
                 "x expert tensor parallel size 4 does not divide the 4 ranks");
  expect_refused({.expert_tensor_parallel_size = 0},
                 "expert tensor parallel size must be at least 1, got 0");
  expect_refused({.virtual_pipeline_model_parallel_size = 2}, "virtual pipeline");
  expect_refused({.order = ""}, "is empty");
  expect_refused({.order = "tp-dp-tp"}, "repeats tp");
  expect_refused({.order = "tp-xp"}, "unknown axis 'xp'");
  expect_refused({.order = "ep-tp-dp"}, "ep away from dp");
  expect_refused({.tensor_model_parallel_size = 2, .order = "dp-pp"}, "lacks tp");
}

TEST(SingleProcessGroup, CollectivesLeaveTheTensorAsItIs) {
  const auto group = single_process_group();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  EXPECT_FALSE(group->name().empty());
  const Tensor x = tensor({1, 2, 3});
  group->all_reduce(x);
  group->all_reduce(x, ReduceOp::kMax);
  group->broadcast(x, 0);
  group->barrier();
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 2, 3}));
  EXPECT_THROW(group->broadcast(x, 1), ValueError);
  EXPECT_THROW(group->broadcast(x, -1), ValueError);
  EXPECT_THROW(group->all_reduce(zeros({3, 2}).t()), ValueError);
  EXPECT_THROW(group->broadcast(zeros({3, 2}).t(), 0), ValueError);
}

}  // namespace
}  // namespace tapestry
