#include "parallel_core/comm/thread_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "autograd/kernels/parallel_for.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "tests/message_of.h"
#include "tests/parallel_core/comm/collectives_suite.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

TEST(ThreadRanks, EachHasItsOwnContextAndOneThread) {
  const int before = num_threads();
  run_thread_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    EXPECT_EQ(RankContext::current().rank(), world->rank());
    EXPECT_EQ(RankContext::current().world_size(), 3);
    EXPECT_EQ(num_threads(), 1);
    EXPECT_EQ(world->size(), 3);
    EXPECT_EQ(world->world_ranks(), (std::vector<int>{0, 1, 2}));
  });
  EXPECT_EQ(num_threads(), before);
  EXPECT_THROW(run_thread_ranks(0, [](const auto&) {}), ValueError);
}

class ThreadCollectives : public ::testing::TestWithParam<int> {};

TEST_P(ThreadCollectives, Suite) {
  run_thread_ranks(GetParam(), [](const std::shared_ptr<ProcessGroup>& world) {
    testing::check_collectives(*world);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadCollectives, ::testing::Values(1, 2, 3, 4, 7));

TEST(ThreadRanks, TheFirstFailureIsThrown) {
  const auto run = [] {
    run_thread_ranks(4, [](const std::shared_ptr<ProcessGroup>& world) {
      if (world->rank() == 2) {
        throw std::out_of_range("no such layer");
      }
      world->barrier();
    });
  };
  EXPECT_THAT(message_of<std::out_of_range>(run), HasSubstr("no such layer"));
}

TEST(ThreadRanks, OthersHearWhyOneFailed) {
  EXPECT_THROW(run_thread_ranks(3,
                                [](const std::shared_ptr<ProcessGroup>& world) {
                                  if (world->rank() == 1) {
                                    throw ValueError("out of data");
                                  }
                                  const std::string message =
                                      message_of<CommError>([&] { world->barrier(); });
                                  EXPECT_EQ(message, "rank 1 failed: out of data");
                                }),
               ValueError);
}

}  // namespace
}  // namespace tapestry
