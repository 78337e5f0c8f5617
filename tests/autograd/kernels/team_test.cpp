#include "autograd/kernels/machine/team.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"

#ifdef _OPENMP
namespace tapestry::kernels {
namespace {

class Team : public ::testing::Test {
 protected:
  void TearDown() override { set_num_threads(before_); }
  int before_ = num_threads();
};

// The sum of [0, n) by a loop.
int64_t sum_below(int64_t n) {
  std::atomic<int64_t> sum = 0;
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      sum += i;
    }
  });
  return sum;
}

TEST_F(Team, EachPartRunsOnceHoweverManyThereAre) {
  struct Counts {
    std::array<std::atomic<int>, 70> runs{};
  };
  Counts counts;
  const auto count = [](const void* context, int part) {
    auto& all = *static_cast<Counts*>(const_cast<void*>(context));
    ++all.runs[static_cast<size_t>(part)];
  };
  std::array<int, 70> expected{};
  for (int round = 0; round < 3000; ++round) {
    // Rounds of different sizes right after each other: who comes late meets another round.
    const int parts = round % 1000 == 999 ? 70 : 2 + round % 5;
    run_parts(parts, count, &counts);
    for (size_t i = 0; i < static_cast<size_t>(parts); ++i) {
      ++expected[i];
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(counts.runs[i], expected[i]) << i;
  }
}

TEST_F(Team, TheFirstPartIsTheCallers) {
  std::array<std::thread::id, 4> ran;
  const auto note = [](const void* context, int part) {
    auto& ids = *static_cast<std::array<std::thread::id, 4>*>(const_cast<void*>(context));
    ids[static_cast<size_t>(part)] = std::this_thread::get_id();
  };
  for (int i = 0; i < 100; ++i) {
    run_parts(4, note, &ran);
    ASSERT_EQ(ran[0], std::this_thread::get_id());
  }
}

TEST_F(Team, InsideThereIsOneThread) {
  set_num_threads(3);
  std::atomic<int> inside = 0;
  parallel_for(3, 1, [&](int64_t, int64_t) {
    const bool alone = in_team() && num_threads() == 1;
    // A loop in a loop runs inline.
    const auto here = std::this_thread::get_id();
    parallel_for(1'000'000, 1, [&](int64_t begin, int64_t end) {
      inside += alone && end - begin == 1'000'000 && std::this_thread::get_id() == here ? 1 : 0;
    });
  });
  EXPECT_EQ(inside, 3);
  EXPECT_FALSE(in_team());
  EXPECT_EQ(num_threads(), 3);
  EXPECT_THROW(parallel_for(3, 1, [](int64_t, int64_t) { throw std::logic_error("part"); }),
               std::logic_error);
  EXPECT_FALSE(in_team());
  EXPECT_EQ(num_threads(), 3);
}

TEST_F(Team, EachThreadOfTheProgramHasItsOwn) {
  std::vector<std::thread> threads;
  std::array<int64_t, 3> sums{};
  for (size_t t = 0; t < sums.size(); ++t) {
    threads.emplace_back([&sums, t] {
      set_num_threads(2 + static_cast<int>(t));
      for (int i = 0; i < 200; ++i) {
        sums[t] += sum_below(1000);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const int64_t sum : sums) {
    EXPECT_EQ(sum, 200 * 499'500);
  }
}

TEST_F(Team, SleepersWakeUp) {
  set_num_threads(4);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // longer than they spin
    EXPECT_EQ(sum_below(1000), 499'500);
  }
}

TEST_F(Team, AForkedProcessHasATeamToo) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer ends a forked process that starts threads";
#endif
  set_num_threads(3);
  EXPECT_EQ(sum_below(1000), 499'500);
  const pid_t child = fork();
  if (child == 0) {
    _exit(sum_below(1000) == 499'500 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(sum_below(1000), 499'500);
}

}  // namespace
}  // namespace tapestry::kernels
#endif
