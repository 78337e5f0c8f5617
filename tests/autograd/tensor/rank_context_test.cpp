#include "autograd/tensor/rank_context.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "autograd/ops/inplace.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

struct Counter {
  int value = 7;
};

TEST(RankContext, SlotsBelongToTheContext) {
  RankContext first(0, 2);
  RankContext second(1, 2);
  EXPECT_EQ(second.rank(), 1);
  EXPECT_EQ(second.world_size(), 2);
  first.slot<Counter>().value = 8;
  EXPECT_EQ(first.slot<Counter>().value, 8);
  EXPECT_EQ(second.slot<Counter>().value, 7);
  EXPECT_EQ(&first.slot<Counter>(), &first.slot<Counter>());
}

TEST(RankContext, SlotsAreDestroyedWithIt) {
  struct Flagged {
    ~Flagged() {
      if (destroyed != nullptr) {
        *destroyed = true;
      }
    }
    bool* destroyed = nullptr;
  };
  bool destroyed = false;
  {
    RankContext context;
    context.slot<Flagged>().destroyed = &destroyed;
  }
  EXPECT_TRUE(destroyed);
}

TEST(RankContext, GuardsNest) {
  RankContext& outermost = RankContext::current();
  RankContext first;
  RankContext second;
  {
    const RankContextGuard a(first);
    EXPECT_EQ(&RankContext::current(), &first);
    {
      const RankContextGuard b(second);
      EXPECT_EQ(&RankContext::current(), &second);
    }
    EXPECT_EQ(&RankContext::current(), &first);
  }
  EXPECT_EQ(&RankContext::current(), &outermost);
}

TEST(RankContext, ThreadsHaveTheirOwnCurrentOne) {
  RankContext mine;
  const RankContextGuard guard(mine);
  RankContext* seen = nullptr;
  RankContext other(3, 4);
  std::thread thread([&] {
    EXPECT_NE(&RankContext::current(), &mine);  // a guard holds for its thread only
    const RankContextGuard inner(other);
    seen = &RankContext::current();
    manual_seed(5);
  });
  thread.join();
  EXPECT_EQ(seen, &other);
  EXPECT_EQ(mine.default_generator().state(), Generator().state());
  EXPECT_EQ(other.default_generator().state(), Generator(5).state());
}

// Threads without a guard share the process default.
TEST(RankContext, ThreadsMayShareOne) {
  struct Unique {
    std::unique_ptr<int> value = std::make_unique<int>(3);
  };
  std::set<uint64_t> offsets;
  std::set<const void*> slots;
  std::mutex mutex;
  std::vector<std::thread> threads;
  RankContext context;
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const RankContextGuard guard(context);
      for (int round = 0; round < kRounds; ++round) {
        const Tensor x = full({100 + 7 * (round % 5)}, round);
        EXPECT_EQ(x.to_vector<float>().back(), static_cast<float>(round));
        const uint64_t offset = context.default_generator().reserve(2).offset;
        const void* slot = &context.slot<Unique>();
        const std::lock_guard lock(mutex);
        offsets.insert(offset);
        slots.insert(slot);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(offsets.size(), kThreads * kRounds);  // no number twice
  EXPECT_EQ(context.default_generator().state().offset, 2U * kThreads * kRounds);
  EXPECT_EQ(slots.size(), 1U);
  EXPECT_EQ(context.allocator().stats().current_bytes, 0);
  EXPECT_EQ(context.allocator().stats().allocations, kThreads * kRounds);
}

TEST(Storage, ThreadsMayChangeDisjointParts) {
  const Tensor x = zeros({2, 64});
  std::vector<std::thread> threads;
  for (int64_t row = 0; row < 2; ++row) {
    threads.emplace_back([part = x.select(0, row)] {
      for (int i = 0; i < 100; ++i) {
        fill_(part, i);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(x.version(), 200U);
}

TEST(RankContext, MemoryIsCountedPerRank) {
  RankContext first;
  RankContext second;
  Tensor x;
  {
    const RankContextGuard guard(first);
    x = zeros({16});
  }
  EXPECT_EQ(first.allocator().stats().current_bytes, 64);
  EXPECT_EQ(second.allocator().stats().current_bytes, 0);
  {
    const RankContextGuard guard(second);
    x = Tensor();  // goes back to where it came from
  }
  EXPECT_EQ(first.allocator().stats().current_bytes, 0);
  EXPECT_EQ(second.allocator().stats().current_bytes, 0);
}

TEST(Generator, HandsOutConsecutiveRanges) {
  Generator generator(42);
  const RandomKey a = generator.reserve(10);
  const RandomKey b = generator.reserve(5);
  EXPECT_EQ(a.seed, 42U);
  EXPECT_EQ(a.offset, 0U);
  EXPECT_EQ(b.offset, 10U);
  const Generator::State state = generator.state();
  EXPECT_EQ(generator.reserve(1).offset, 15U);
  generator.set_state(state);
  EXPECT_EQ(generator.reserve(1).offset, 15U);
  generator.manual_seed(42);
  EXPECT_EQ(generator.reserve(1).offset, 0U);
}

TEST(Generator, StreamsDiffer) {
  EXPECT_EQ(stream_of(""), 0xcbf29ce484222325U);
  EXPECT_EQ(stream_of("a"), 0xaf63dc4c8601ec8cU);  // published FNV-1a value
  EXPECT_NE(stream_of("layers.0.attention.wq.weight"), stream_of("layers.1.attention.wq.weight"));
  EXPECT_NE(combine(1, 2), combine(2, 1));
  EXPECT_NE(combine(0, 0), 0U);
}

}  // namespace
}  // namespace tapestry
