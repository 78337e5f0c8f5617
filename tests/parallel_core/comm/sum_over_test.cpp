#include "parallel_core/comm/sum_over.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/thread_ranks.h"

namespace tapestry {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What a rank contributes. Its sum depends on the order in which it is made.
double value_of(int rank, size_t i) {
  return std::pow(-3.0, rank) * std::sqrt(static_cast<double>(i) + 2) * (rank == 1 ? 1e15 : 1);
}

double expected_sum(int ranks, size_t i) {
  double sum = value_of(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    sum += value_of(rank, i);
  }
  return sum;
}

TEST(SumOver, AddsInTheOrderOfTheRanks) {
  for (const int ranks : {2, 3, 5}) {
    run_thread_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
      for (const size_t count : {0, 1, 3, 700}) {
        std::vector<double> values(count);
        for (size_t i = 0; i < count; ++i) {
          values[i] = value_of(world->rank(), i);
        }
        sum_over(*world, values);
        for (size_t i = 0; i < count; ++i) {
          EXPECT_EQ(values[i], expected_sum(ranks, i)) << i;
        }
      }
      EXPECT_EQ(sum_over(*world, value_of(world->rank(), 9)), expected_sum(ranks, 9));
    });
  }
}

TEST(SumOver, KeepsWhatIsNotFinite) {
  run_thread_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const bool second = world->rank() == 1;
    std::array<double, 3> values = {second ? kInfinity : 1, second ? std::nan("") : 1, 1e308};
    sum_over(*world, values);
    EXPECT_EQ(values[0], kInfinity);
    EXPECT_TRUE(std::isnan(values[1]));
    EXPECT_EQ(values[2], kInfinity);
  });
}

TEST(SumOver, AGroupOfOneCommunicatesNothing) {
  const auto alone = single_process_group();
  std::array<double, 2> values = {0.1, -7};
  sum_over(*alone, values);
  EXPECT_EQ(values, (std::array<double, 2>{0.1, -7}));
  EXPECT_EQ(sum_over(*alone, 0.3), 0.3);
  EXPECT_EQ(alone->stats().of(Collective::kAllReduce).calls, 0);
}

TEST(SumOver, OneCallForAllValues) {
  run_thread_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    std::array<double, 4> values = {};
    sum_over(*world, values);
    EXPECT_EQ(world->stats().of(Collective::kAllReduce).calls, 1);
    EXPECT_EQ(world->stats().of(Collective::kAllReduce).bytes, 32);
  });
}

TEST(SumOver, RanksWithOtherNumbersOfValuesAreStopped) {
  const auto run = [] {
    run_thread_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
      std::vector<double> values(world->rank() == 0 ? 1 : 2);
      sum_over(*world, values);
    });
  };
  EXPECT_THROW(run(), CommError);
}

}  // namespace
}  // namespace tapestry
