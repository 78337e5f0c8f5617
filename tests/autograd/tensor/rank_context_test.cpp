#include "autograd/tensor/rank_context.h"

#include <gtest/gtest.h>

#include <thread>

#include "autograd/tape/grad_mode.h"
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
    other.grad_enabled = false;
    manual_seed(5);
  });
  thread.join();
  EXPECT_EQ(seen, &other);
  EXPECT_TRUE(grad_enabled());
  EXPECT_EQ(mine.default_generator().state(), Generator().state());
  EXPECT_EQ(other.default_generator().state(), Generator(5).state());
}

TEST(RankContext, SequenceNumbersGrow) {
  RankContext context;
  const uint64_t first = context.next_sequence_number();
  EXPECT_GT(context.next_sequence_number(), first);
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
