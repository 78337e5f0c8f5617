// Collectives that move on while their ranks compute, seen without a clock: they are through before
// anybody waits for them.
#include "parallel_core/comm/background_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/distributed.h"
#include "parallel_core/comm/thread_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel_core/comm/collectives_suite.h"
#include "tests/parallel_core/comm/while_computing.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;
using testing::is_done_while_computing;
using ::testing::StartsWith;
using World = std::shared_ptr<ProcessGroup>;

constexpr int64_t kSize = 1'000'000;  // several segments on two ranks

TEST(BackgroundProgress, CollectivesEndBeforeTheyAreWaitedFor) {
  for (const int ranks : {2, 9}) {
    run_thread_ranks(ranks, [&](const World& world) {
      const int64_t n = kSize / ranks * ranks;
      const Tensor sum = full({n}, world->rank() + 1);
      const Tensor gathered = zeros({n});
      const Tensor piece = zeros({n / ranks});
      const Tensor received = zeros({n});
      const int next = (world->rank() + 1) % ranks;
      const int previous = (world->rank() + ranks - 1) % ranks;
      const std::vector<WorkHandle> works = {
          world->all_reduce_async(sum),
          world->all_gather_async(gathered, full({n / ranks}, world->rank())),
          world->reduce_scatter_async(piece, full({n}, 1)),
          world->receive_async(received, previous),
          world->send_async(full({n}, world->rank()), next),
          world->all_reduce_async(full({3}, 1)),  // so small that it goes when it is asked for
      };
      for (const WorkHandle& work : works) {
        EXPECT_TRUE(is_done_while_computing(*work));
      }
      EXPECT_EQ(sum.at({n - 1}), ranks * (ranks + 1) / 2);
      EXPECT_EQ(gathered.at({n - 1}), ranks - 1);
      EXPECT_EQ(piece.at({0}), ranks);
      EXPECT_EQ(received.at({n - 1}), previous);
    });
  }
}

// What the tests above would see without it.
TEST(BackgroundProgress, WithoutItNothingMovesUntilSomebodyWaits) {
  std::barrier started(2);
  run_thread_ranks(2,
                   [&](const World& world) {
                     const Tensor x = full({kSize}, 1);
                     const WorkHandle work = world->all_reduce_async(x);
                     started.arrive_and_wait();
                     EXPECT_FALSE(work->done());
                     started.arrive_and_wait();
                     work->wait();
                     EXPECT_TRUE(work->done());
                     EXPECT_EQ(x.at({0}), 2);
                   },
                   {.progress = CommProgress::kWait});
}

TEST(BackgroundProgress, CanBeWaitedForAtOnceInstead) {
  run_thread_ranks(3,
                   [](const World& world) {
                     const Tensor x = full({kSize}, 1);
                     EXPECT_TRUE(world->all_reduce_async(x)->done());
                     EXPECT_EQ(x.at({0}), 3);
                     testing::check_collectives(*world);
                   },
                   {.progress = CommProgress::kNone});
}

// A rank that computes is moved on by the thread behind it, while another waits for what it has.
TEST(BackgroundProgress, ServesARankThatWaits) {
  std::atomic<bool> has_it{false};
  run_thread_ranks(2, [&](const World& world) {
    const Tensor x = full({kSize}, world->rank() + 1);
    const WorkHandle work = world->all_reduce_async(x);
    if (world->rank() == 0) {
      work->wait();
      has_it = true;
    } else {
      EXPECT_TRUE(testing::becomes_true([&] { return has_it.load(); }));
    }
    work->wait();
    EXPECT_EQ(x.at({kSize - 1}), 3);
  });
}

// Ranks that disagree while they compute hear so from their next call.
TEST(BackgroundProgress, WhatGoesWrongIsThrownByTheNextCall) {
  const std::string report = message_of<CommError>([] {
    run_thread_ranks(2, [](const World& world) {
      const Tensor x = zeros({kSize + world->rank()});
      const WorkHandle work = world->all_reduce_async(x);
      testing::becomes_true([&] { return work->done(); }, std::chrono::seconds(1));
      world->barrier();
    });
  });
  EXPECT_THAT(report, StartsWith("the ranks disagree: rank "));
  EXPECT_THAT(report, HasSubstr("1000000 elements"));
  EXPECT_THAT(report, HasSubstr("1000001 elements"));
}

TEST(BackgroundProgress, SleepsWhileThereIsNoWork) {
  std::mutex mutex;
  int work = 0;   // guarded by mutex, as are the others
  int looks = 0;  // at whether there is some
  int steps = 0;
  {
    BackgroundProgress progress(
        mutex,
        [&] {
          ++looks;
          return work > 0;
        },
        [&] {
          ++steps;
          return --work > 0;
        });
    for (int round = 1; round <= 3; ++round) {
      {
        const std::scoped_lock lock(mutex);
        work = 5;
        progress.wake();
      }
      EXPECT_TRUE(testing::becomes_true([&] {
        const std::scoped_lock lock(mutex);
        return work == 0;
      }));
    }
  }
  EXPECT_EQ(steps, 15);
  EXPECT_LE(looks, 15 + 2 * 4);  // after each step, and before each sleep
}

TEST(BackgroundProgress, TakesALibraryThatLetsTwoThreadsIn) {
  EXPECT_EQ(choose_progress(CommProgress::kThread, true, "MPI_THREAD_SERIALIZED").progress,
            CommProgress::kThread);
  const ProgressChoice alone = choose_progress(CommProgress::kThread, false, "MPI_THREAD_FUNNELED");
  EXPECT_EQ(alone.progress, CommProgress::kWait);
  EXPECT_THAT(alone.text, HasSubstr("nothing overlaps with computing: the MPI library provides "
                                    "MPI_THREAD_FUNNELED"));
  EXPECT_EQ(choose_progress(CommProgress::kWait, true, "").progress, CommProgress::kWait);
  EXPECT_EQ(choose_progress(CommProgress::kNone, false, "").progress, CommProgress::kNone);
}

}  // namespace
}  // namespace tapestry
