#include "autograd/kernels/machine/parallel_for.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <new>
#include <stdexcept>
#include <string>

#include "autograd/kernels/machine/team_state.h"

namespace tapestry::kernels {
namespace {

class ParallelFor : public ::testing::Test {
 protected:
  void SetUp() override { set_num_threads(4); }
  void TearDown() override { set_num_threads(before_); }
  int before_ = num_threads();
};

TEST_F(ParallelFor, WhatAnyPartThrowsReachesTheCaller) {
  for (int64_t bad = 0; bad < 4; ++bad) {
    std::atomic<int64_t> finished = 0;
    const auto body = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (i == bad) {
          throw std::runtime_error("part " + std::to_string(i));
        }
        ++finished;
      }
    };
    try {
      parallel_for(4, 1, body);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& e) {
      EXPECT_EQ(e.what(), "part " + std::to_string(bad));
    }
    EXPECT_LE(finished, 3);
  }
  // And loops go on working.
  std::atomic<int64_t> sum = 0;
  parallel_for(100, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      sum += i;
    }
  });
  EXPECT_EQ(sum, 4950);
}

TEST_F(ParallelFor, OneOfSeveralExceptionsIsThrown) {
  EXPECT_THROW(parallel_for(4, 1, [](int64_t, int64_t) { throw std::bad_alloc(); }),
               std::bad_alloc);
}

TEST_F(ParallelFor, ThreadsInheritTheCallersState) {
  int rank = 0;
  const TeamStateGuard guard({.rank_context = &rank, .op = "outer", .backward_of = "inner"});
  std::array<TeamState, 4> seen;
  parallel_for(4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      seen[static_cast<size_t>(i)] = team_state();
    }
  });
  for (const TeamState& state : seen) {
    EXPECT_EQ(state.rank_context, &rank);
    EXPECT_EQ(state.op, "outer");
    EXPECT_EQ(state.backward_of, "inner");
  }
  // They give it back.
  const TeamStateGuard other({});
  parallel_for(4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      seen[static_cast<size_t>(i)] = team_state();
    }
  });
  for (const TeamState& state : seen) {
    EXPECT_EQ(state.rank_context, nullptr);
    EXPECT_EQ(state.op, "");
  }
}

}  // namespace
}  // namespace tapestry::kernels
