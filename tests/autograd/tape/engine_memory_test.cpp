// Long chains, memory, and ranks as threads.
#include <pthread.h>

#include <functional>
#include <thread>

#include "autograd/tape/autograd_meta.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/tape/tape_test_util.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;

constexpr int kChain = 100000;

// Runs f in a thread with a stack of 256 KiB: recursion over a chain would not survive it.
void run_with_small_stack(const std::function<void()>& f) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
  pthread_t thread{};
  const auto entry = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  std::function<void()> copy = f;
  ASSERT_EQ(pthread_create(&thread, &attributes, entry, &copy), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

Tensor chain(const Tensor& x, int length) {
  Tensor y = x;
  for (int i = 0; i < length; ++i) {
    y = y + x;
  }
  return y;
}

TEST(DeepGraph, Backward) {
  run_with_small_stack([] {
    RankContext context;
    const RankContextGuard guard(context);
    const Tensor x = leaf({1});
    sum(chain(x, kChain)).backward();
    EXPECT_THAT(values(x.grad()), ElementsAre(kChain + 1));
  });
}

TEST(DeepGraph, DestructionWithoutBackward) {
  run_with_small_stack([] {
    RankContext context;
    const RankContextGuard guard(context);
    {
      const Tensor x = leaf({1});
      const Tensor y = chain(x, kChain);
    }
    EXPECT_EQ(memory_stats().current_bytes, 0);
  });
}

TEST(DeepGraph, DestructionThroughSavedTensors) {
  run_with_small_stack([] {
    RankContext context;
    const RankContextGuard guard(context);
    {
      const Tensor x = leaf({1});
      Tensor y = x;
      for (int i = 0; i < kChain; ++i) {
        y = tanh(y * x);  // saves inputs that own the chain below them, and outputs
      }
    }
    EXPECT_EQ(memory_stats().current_bytes, 0);
  });
}

TEST(DeepGraph, GradOfTheFirstValueAndRetain) {
  run_with_small_stack([] {
    RankContext context;
    const RankContextGuard guard(context);
    const Tensor x = leaf({1});
    const Tensor y = sum(chain(x, kChain));
    EXPECT_THAT(values(grad(y, {x}, {}, {.retain_graph = true})[0]), ElementsAre(kChain + 1));
    EXPECT_THAT(values(grad(y, {x})[0]), ElementsAre(kChain + 1));
  });
}

TEST(DeepGraph, ChainOfRecordedGradients) {
  run_with_small_stack([] {
    RankContext context;
    const RankContextGuard guard(context);
    const Tensor x = leaf({1});
    Tensor y = x;
    for (int i = 0; i < 20000; ++i) {
      y = y * x;
      y = y * (1 / y.detach().item());
    }
    const Tensor g = grad(sum(y), {x}, {}, {.create_graph = true})[0];
    EXPECT_NEAR(g.item(), 20001, 20);
  });
}

TEST(Memory, IsReleasedAsBackwardGoes) {
  RankContext context;
  const RankContextGuard guard(context);
  constexpr int64_t kNumel = 10000;
  constexpr int kLayers = 50;
  const int64_t bytes = CachingAllocator::rounded_size(kNumel * 4);
  const Tensor x = ones({kNumel}).set_requires_grad();
  Tensor y = x;
  for (int i = 0; i < kLayers; ++i) {
    y = tanh(y);
  }
  Tensor loss = sum(y);
  y = Tensor();
  const int64_t saved = memory_stats().current_bytes;
  EXPECT_GE(saved, kLayers * bytes);
  context.allocator().reset_peak();
  loss.backward();
  // Only a few gradients are alive at any time besides what had been saved.
  EXPECT_LE(memory_stats().peak_bytes, saved + 4 * bytes);
  // Everything that was saved is gone although the loss is still there; x and its gradient stay.
  EXPECT_LE(memory_stats().current_bytes, 2 * bytes + 128);
}

TEST(Memory, RetainGraphKeepsIt) {
  RankContext context;
  const RankContextGuard guard(context);
  const Tensor x = ones({10000}).set_requires_grad();
  const Tensor loss = sum(tanh(tanh(x)));
  const int64_t before = memory_stats().current_bytes;
  loss.backward({}, true);
  EXPECT_GT(memory_stats().current_bytes, before);
}

TEST(Memory, TrainingStepsAreSteady) {
  RankContext context;
  const RankContextGuard guard(context);
  const Tensor w = ones({100, 100}).set_requires_grad();
  int64_t system_allocations = 0;
  for (int step = 0; step < 10; ++step) {
    w.set_grad({});
    sum(tanh(w * w) + w).backward();
    if (step == 2) {
      system_allocations = memory_stats().system_allocations;
    }
  }
  EXPECT_EQ(memory_stats().system_allocations, system_allocations);
}

TEST(Memory, GraphsWithHooksAreReleased) {
  RankContext context;
  const RankContextGuard guard(context);
  {
    const Tensor x = leaf({1, 2});
    const Tensor y = x * x;
    y.retain_grad();
    y.register_hook([](const Tensor& g) { return g * 2; });
    x.register_post_accumulate_grad_hook([](const Tensor&) {});
    sum(y).backward();
    const Tensor unused = y * x;
  }
  EXPECT_EQ(memory_stats().current_bytes, 0);
}

TEST(Threads, RanksRunBackwardAtTheSameTime) {
  constexpr int kRanks = 2;
  std::vector<std::vector<float>> results(kRanks);
  std::vector<int64_t> left(kRanks, -1);
  std::vector<std::thread> threads;
  threads.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([rank, &results, &left] {
      RankContext context(rank, kRanks);
      const RankContextGuard guard(context);
      {
        const Tensor x = leaf({static_cast<float>(rank + 1)});
        for (int step = 0; step < 50; ++step) {
          Tensor y = x;
          for (int i = 0; i < 100; ++i) {
            y = y + x * x;
          }
          x.set_grad({});
          sum(y).backward();
        }
        results[static_cast<size_t>(rank)] = values(x.grad());
      }
      left[static_cast<size_t>(rank)] = memory_stats().current_bytes;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(results[0], ElementsAre(1 + 200));
  EXPECT_THAT(results[1], ElementsAre(1 + 400));
  EXPECT_THAT(left, ElementsAre(0, 0));
}

TEST(Threads, GradModeIsPerRank) {
  const NoGradGuard guard;
  bool recorded = false;
  std::thread thread([&] {
    RankContext context;
    const RankContextGuard inner(context);
    recorded = (leaf({1}) * 2).requires_grad();
  });
  thread.join();
  EXPECT_TRUE(recorded);
}

}  // namespace
}  // namespace tapestry
