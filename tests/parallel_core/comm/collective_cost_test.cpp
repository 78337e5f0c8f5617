// What the formulas of collectives say, beside ranks that carry out the collectives on a simulated
// network. Simulated time does not depend on the machine.
#include "parallel_core/comm/collective_cost.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/measure_messages.h"
#include "parallel_core/comm/simulated_ranks.h"
#include "parallel_core/comm/thread_ranks.h"
#include "tests/message_of.h"

namespace tapestry::collective_cost_test {
namespace {

using Body = std::function<void(ProcessGroup& world)>;

// One with a fast link and far ranks, one whose link takes nearly all of the time.
constexpr MessageCost kFast = {.latency = 5e-6, .overhead = 1e-6, .per_byte = 1 / 12.5e9};
constexpr MessageCost kSlow = {.latency = 20e-6, .overhead = 4e-6, .per_byte = 1 / 1.25e9};

double simulated(int ranks, const MessageCost& cost, const Body& body) {
  return simulate_ranks(ranks, cost,
                        [&](ProcessGroup& world, SimulatedClock& /*clock*/) { body(world); });
}

void expect_near(const char* what, double formula, double simulated, double bound) {
  EXPECT_NEAR(formula / simulated, 1, bound)
      << what << ": " << formula * 1e6 << " us, simulated " << simulated * 1e6 << " us";
}

// Trees and messages have one way that everything waits for, and the formula follows it. Chains and
// exchanges overlap in ways that it leaves out: the end of one stage and the beginning of the next,
// the last segment, which may be shorter, and results that cross the sums. They are a few of the
// messages that are on the way one after the other.
constexpr double kOneWay = 0.03;
constexpr double kManyWays = 0.2;

void compare(int ranks, int64_t elements, const MessageCost& cost) {
  SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << elements << " elements");
  const int64_t count = elements / ranks * ranks;
  const int64_t bytes = count * 4;
  const auto time = [&](const Body& body) { return simulated(ranks, cost, body); };
  expect_near("all_reduce", all_reduce_seconds(cost, ranks, bytes),
              time([&](ProcessGroup& world) { world.all_reduce(zeros({count})); }), kManyWays);
  expect_near("reduce_scatter", reduce_scatter_seconds(cost, ranks, bytes),
              time([&](ProcessGroup& world) {
                world.reduce_scatter(zeros({count / ranks}), zeros({count}));
              }),
              kManyWays);
  expect_near("all_gather", all_gather_seconds(cost, ranks, bytes), time([&](ProcessGroup& world) {
                world.all_gather(zeros({count}), zeros({count / ranks}));
              }),
              kManyWays);
  expect_near("all_to_all", all_to_all_seconds(cost, ranks, bytes),
              time([&](ProcessGroup& world) { world.all_to_all(zeros({count}), zeros({count})); }),
              kManyWays);
  expect_near("broadcast", broadcast_seconds(cost, ranks, bytes),
              time([&](ProcessGroup& world) { world.broadcast(zeros({count}), ranks - 1); }),
              kOneWay);
}

TEST(CollectiveCost, IsWhatSimulatedRanksTake) {
  for (const int ranks : {2, 5, 8, 9, 16}) {
    for (const int64_t elements : {1000, 20'000, 200'000}) {
      compare(ranks, elements, kFast);
    }
    compare(ranks, 100'000, kSlow);
    expect_near("barrier", barrier_seconds(kFast, ranks),
                simulated(ranks, kFast, [](ProcessGroup& world) { world.barrier(); }), kOneWay);
  }
}

// The link of a rank that gets its results carries the sums of the others at the same time; in
// turns, the ranks keep the chain as fast as a link.
TEST(CollectiveCost, AReduceScatterIsAsFastAsALink) {
  constexpr int kRanks = 9;
  constexpr int64_t kCount = kRanks * int64_t{600'000};
  const double seconds = simulated(kRanks, kSlow, [](ProcessGroup& world) {
    world.reduce_scatter(zeros({kCount / kRanks}), zeros({kCount}));
  });
  EXPECT_LT(seconds, 1.35 * 4 * kCount * kSlow.per_byte);
}

TEST(CollectiveCost, OfOneRankIsNothing) {
  EXPECT_EQ(all_reduce_seconds(kFast, 1, 1000), 0);
  EXPECT_EQ(reduce_scatter_seconds(kFast, 1, 1000), 0);
  EXPECT_EQ(all_gather_seconds(kFast, 1, 1000), 0);
  EXPECT_EQ(all_to_all_seconds(kFast, 1, 1000), 0);
  EXPECT_EQ(broadcast_seconds(kFast, 1, 1000), 0);
  EXPECT_EQ(barrier_seconds(kFast, 1), 0);
}

TEST(SimulatedRanks, TakeTheTimeOfTheirMessages) {
  const auto to_the_next = [](int64_t elements, double computing) {
    return [=](ProcessGroup& world, SimulatedClock& clock) {
      if (world.rank() == 0) {
        clock.compute(computing);
        world.send(full({elements}, 7), 1);
      } else {
        const Tensor x = zeros({elements});
        world.receive(x, 0);
        EXPECT_EQ(x.at({elements - 1}), 7);
        EXPECT_GE(clock.now(), computing);
      }
    };
  };
  EXPECT_DOUBLE_EQ(simulate_ranks(2, kFast, to_the_next(2, 0)), message_seconds(kFast, 8));
  EXPECT_DOUBLE_EQ(simulate_ranks(2, kFast, to_the_next(5000, 0)), message_seconds(kFast, 20'000));
  EXPECT_DOUBLE_EQ(simulate_ranks(2, kFast, to_the_next(5000, 0.5)),
                   0.5 + message_seconds(kFast, 20'000));
}

TEST(SimulatedRanks, RepeatToTheLastDigit) {
  const auto run = [] {
    return simulated(12, kFast, [](ProcessGroup& world) {
      const WorkHandle sums = world.all_reduce_async(zeros({100'000}));
      world.all_to_all(zeros({12'000}), zeros({12'000}));
      sums->wait();
    });
  };
  const double first = run();
  EXPECT_EQ(run(), first);
  EXPECT_EQ(run(), first);
}

// Nothing happens any more: the watch finds out, as on any transport.
TEST(SimulatedRanks, StopWhereTheyWaitForEachOther) {
  const auto deadlock = [](ProcessGroup& world) { world.receive(zeros({4}), 1 - world.rank()); };
  EXPECT_NE(message_of<CommError>([&] { simulated(2, kFast, deadlock); }).find("deadlock"),
            std::string::npos);
  const auto to_itself = [](ProcessGroup& world) { world.send(zeros({4}), world.rank()); };
  EXPECT_NE(message_of<ValueError>([&] { simulated(2, kFast, to_itself); }).find("to itself"),
            std::string::npos);
}

TEST(MeasureMessages, SaysTheSameOnAllRanks) {
  run_thread_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const MessageCost cost = measure_messages(*world);
    EXPECT_GE(cost.latency, 0);
    EXPECT_GT(cost.overhead, 0);
    EXPECT_GT(cost.per_byte, 0);
    EXPECT_GT(cost.add_per_byte, 0);
    const Tensor latency = full({3}, cost.latency, kFloat64);
    const Tensor all = zeros({9}, kFloat64);
    world->all_gather(all, latency);
    EXPECT_EQ(all.at({0}), all.at({8}));
  });
  EXPECT_THROW(measure_messages(*single_process_group()), ValueError);
}

}  // namespace
}  // namespace tapestry::collective_cost_test
