#include "parallel_core/comm/thread_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/forwarding_transport.h"
#include "parallel_core/comm/schedule.h"
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

// Above kMostDirect, chains, rings and trees.
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadCollectives, ::testing::Values(1, 2, 3, 4, 7, 9));

TEST(ThreadRanks, ExactSumsOfManyRanksAreATree) {
  run_thread_ranks(
      16, [](const std::shared_ptr<ProcessGroup>& world) { testing::check_exact_sums(*world); });
}

class CountingTransport final : public ForwardingTransport {
 public:
  CountingTransport(std::unique_ptr<Transport> inner, std::vector<std::atomic<int64_t>>& sends)
      : ForwardingTransport(std::move(inner)), sends_(sends) {}
  std::shared_ptr<Transfer> send(int destination,
                                 const Envelope& envelope,
                                 const void* data) override {
    sends_[static_cast<size_t>(rank())] += envelope.kind == Envelope::Kind::kData ? 1 : 0;
    return ForwardingTransport::send(destination, envelope, data);
  }

 private:
  std::vector<std::atomic<int64_t>>& sends_;
};

// The messages that schedule_test.cpp counts are those that are sent.
TEST(ThreadRanks, MessagesAreThoseOfTheSchedules) {
  constexpr int kRanks = 10;
  constexpr int64_t kSize = 640'000;
  std::vector<std::atomic<int64_t>> sends(kRanks);
  const auto sends_of = [&](const std::function<void(ProcessGroup&)>& call) {
    for (auto& count : sends) {
      count = 0;
    }
    run_thread_ranks(kRanks, [&](const std::shared_ptr<ProcessGroup>& world) { call(*world); },
                     {.wrap_transport = [&](std::unique_ptr<Transport> inner) {
                       return std::make_unique<CountingTransport>(std::move(inner), sends);
                     }});
    return std::vector<int64_t>(sends.begin(), sends.end());
  };
  const int64_t up = ChainLayout::all_reduce(kRanks, kSize, 4).segments();
  ASSERT_GT(up, 2 * kWindow);
  std::vector<int64_t> expected(kRanks, 2 * up);
  expected.front() = expected.back() = up;
  EXPECT_EQ(sends_of([&](ProcessGroup& world) { world.all_reduce(zeros({kSize})); }), expected);

  const ChainLayout pieces = ChainLayout::reduce_scatter(kRanks, kSize, 4);
  expected.assign(kRanks, pieces.segments());
  expected.back() = (kRanks - 1) * pieces.shares_per_piece;
  EXPECT_EQ(sends_of([&](ProcessGroup& world) {
              world.reduce_scatter(zeros({kSize / kRanks}), zeros({kSize}));
            }),
            expected);

  expected.assign(kRanks, kRanks - 1);
  EXPECT_EQ(sends_of([&](ProcessGroup& world) {
              world.all_gather(zeros({kSize}), zeros({kSize / kRanks}));
            }),
            expected);

  // A tree of ten: 0 has the children 1, 2, 4, 8; 2 has 3; 4 has 5 and 6; 6 has 7; 8 has 9.
  expected = {4, 1, 2, 1, 3, 1, 2, 1, 2, 1};
  EXPECT_EQ(sends_of([&](ProcessGroup& world) { world.all_reduce(zeros({100})); }), expected);
  EXPECT_EQ(sends_of([&](ProcessGroup& world) {
              world.all_gather(zeros({100 * int64_t{kRanks}}), zeros({100}));
            }),
            expected);
}

class PeersTransport final : public ForwardingTransport {
 public:
  PeersTransport(std::unique_ptr<Transport> inner, std::vector<std::set<int>>& peers)
      : ForwardingTransport(std::move(inner)), peers_(peers) {}
  std::shared_ptr<Transfer> send(int destination,
                                 const Envelope& envelope,
                                 const void* data) override {
    peers_[static_cast<size_t>(rank())].insert(destination);
    return ForwardingTransport::send(destination, envelope, data);
  }

 private:
  std::vector<std::set<int>>& peers_;
};

// A rank talks to its parent and its children in a binomial tree; and to rank 0, if it has to wait
// for long.
TEST(ThreadRanks, EndAlongATree) {
  constexpr int kRanks = 64;
  std::vector<std::set<int>> peers(kRanks);
  run_thread_ranks(kRanks, [](const std::shared_ptr<ProcessGroup>& /*world*/) {},
                   {.wrap_transport = [&](std::unique_ptr<Transport> inner) {
                     return std::make_unique<PeersTransport>(std::move(inner), peers);
                   }});
  for (int rank = 1; rank < kRanks; ++rank) {
    const Tree tree = {kRanks, rank};
    const std::vector<int> children = tree.children();
    std::set<int> expected(children.begin(), children.end());
    expected.insert({0, tree.parent()});
    std::set<int>& own = peers[static_cast<size_t>(rank)];
    own.insert(0);
    EXPECT_EQ(own, expected) << "rank " << rank;
  }
}

TEST(ThreadRanks, SayWhenTheSystemHasNoMoreThreads) {
  const auto run_with_few = [] {
    constexpr rlimit kFew = {20, 20};
    constexpr uid_t kNobody = 65534;  // for whom the limit holds
    if (setrlimit(RLIMIT_NPROC, &kFew) != 0 || (geteuid() == 0 && setuid(kNobody) != 0)) {
      std::_Exit(4);
    }
    try {
      run_thread_ranks(200, [](const std::shared_ptr<ProcessGroup>& world) { world->barrier(); });
    } catch (const RuntimeError& error) {
      std::cerr << error.what() << std::endl;
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_with_few(), ::testing::ExitedWithCode(3), "no thread for rank [0-9]+ of 200");
}

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
