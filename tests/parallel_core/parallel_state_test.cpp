#include "parallel_core/parallel_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

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
  for (const auto size :
       {get_tensor_model_parallel_world_size, get_pipeline_model_parallel_world_size,
        get_context_parallel_world_size, get_data_parallel_world_size}) {
    EXPECT_EQ(size(), 1);
  }
  for (const auto rank : {get_tensor_model_parallel_rank, get_pipeline_model_parallel_rank,
                          get_context_parallel_rank, get_data_parallel_rank}) {
    EXPECT_EQ(rank(), 0);
  }
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
