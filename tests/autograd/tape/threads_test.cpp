// What threads may do at the same time (autograd/tensor/thread_state.h): most of these tests are
// there for the thread sanitizer.
#include <atomic>
#include <barrier>
#include <functional>
#include <thread>

#include "autograd/ops/activation.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/random.h"
#include "autograd/tape/anomaly.h"
#include "autograd/tape/checkpoint.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/tape/tape_test_util.h"

namespace tapestry {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;

void on_another_thread(const std::function<void()>& body) { std::thread(body).join(); }

// Two layers, whose parameters several threads use.
struct Model {
  Tensor w1 = randn({8, 16}, kFloat32, RandomKey{.seed = 1}).set_requires_grad();
  Tensor w2 = randn({16, 1}, kFloat32, RandomKey{.seed = 2}).set_requires_grad();
  Tensor operator()(const Tensor& x) const { return matmul(tanh(matmul(x, w1)), w2); }
};

Tensor input(uint64_t seed) { return randn({4, 8}, kFloat32, RandomKey{.seed = seed}); }

TEST(ThreadState, BelongsToTheThread) {
  const NoGradGuard no_grad;
  const AnomalyGuard anomaly;
  const MemoryKindGuard kind(MemoryKind::kParameter);
  on_another_thread([] {
    EXPECT_TRUE(grad_enabled());
    EXPECT_FALSE(thread_state().anomaly_enabled);
    EXPECT_EQ(thread_state().memory_kind, MemoryKind::kActivation);
    EXPECT_TRUE((leaf({1}) * 2).requires_grad());
  });
  EXPECT_FALSE((leaf({1}) * 2).requires_grad());
}

TEST(ThreadState, AGuardOnAnotherThreadChangesNothingHere) {
  std::barrier both(2);
  std::thread other([&] {
    const NoGradGuard no_grad;
    both.arrive_and_wait();  // opened
    both.arrive_and_wait();  // seen
  });
  both.arrive_and_wait();
  EXPECT_TRUE(grad_enabled());
  EXPECT_TRUE((leaf({1}) * 2).requires_grad());
  both.arrive_and_wait();
  other.join();
}

TEST(ThreadState, IsNotThatOfTheContext) {
  const NoGradGuard no_grad;
  RankContext context;
  const RankContextGuard guard(context);
  EXPECT_FALSE(grad_enabled());
}

// Looks which op the thread is said to work for.
struct Asking {
  static constexpr OpName name = "asking";
  Tensor forward(const Tensor& x) {
    EXPECT_EQ(kernels::team_state().op, "asking");
    return x;
  }
  Tensor backward(const Tensor& dy) const {
    EXPECT_EQ(kernels::team_state().backward_of, "asking");
    return dy;
  }
};

TEST(ThreadState, NamesTheRunningOp) {
  const Tensor x = leaf({1});
  sum(apply_op(Asking{}, x)).backward();
  EXPECT_EQ(kernels::team_state().op, "");
  EXPECT_EQ(kernels::team_state().backward_of, "");
}

TEST(NodeNumbers, BelongToTheProcess) {
  // A graph of two contexts: z is made last, in a context in which little has been recorded.
  RankContext first;
  RankContext second;
  const Tensor x = leaf({3});
  Tensor y;
  {
    const RankContextGuard guard(first);
    for (int i = 0; i < 100; ++i) {
      y = x * 2;
    }
  }
  const RankContextGuard guard(second);
  const Tensor z = y * y;
  sum(z + y).backward();  // y has both of its gradients before its node runs
  EXPECT_THAT(values(x.grad()), ElementsAre(2 * 2 * 6 + 2));
}

TEST(Threads, InferBesideTraining) {
  const Model model;
  const Model frozen;
  std::vector<Tensor> expected;
  for (uint64_t i = 0; i < 4; ++i) {
    const NoGradGuard no_grad;
    expected.push_back(frozen(input(10 + i)));
  }
  Tensor gradient;
  std::atomic<bool> done = false;
  std::thread trainer([&] {
    for (int step = 0; step < 50; ++step) {
      model.w1.set_grad({});
      model.w2.set_grad({});
      sum(model(input(3))).backward();
    }
    gradient = model.w1.grad();
    done = true;
  });
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&] {
      const NoGradGuard no_grad;
      do {
        for (uint64_t i = 0; i < 4; ++i) {
          const Tensor y = model(input(10 + i));
          EXPECT_FALSE(y.requires_grad());
          EXPECT_EQ(values(y), values(expected[i]));
        }
      } while (!done);
    });
  }
  trainer.join();
  for (std::thread& reader : readers) {
    reader.join();
  }
  sum(frozen(input(3))).backward();
  EXPECT_EQ(values(gradient), values(frozen.w1.grad()));
}

TEST(Threads, BackwardRunsOnAnotherThreadThanForward) {
  const auto loss_of = [](const Model& model) {
    const auto block = [&](const TensorList& in) { return dropout(model(in[0]), 0.5); };
    return sum(checkpoint(block, {input(3)}) * model(input(4)));
  };
  manual_seed(5);
  const Model here;
  loss_of(here).backward();

  manual_seed(5);
  const Model elsewhere;
  Tensor loss = loss_of(elsewhere);
  on_another_thread([&] {
    RankContext context;  // whose generator has another state
    const RankContextGuard guard(context);
    context.default_generator().manual_seed(1234);
    loss.backward();
    EXPECT_EQ(context.default_generator().state(), Generator(1234).state());
    loss = {};  // the graph dies here, too
  });
  EXPECT_EQ(values(elsewhere.w1.grad()), values(here.w1.grad()));
  EXPECT_EQ(values(elsewhere.w2.grad()), values(here.w2.grad()));
}

TEST(Threads, PassGraphsAlong) {
  // Each thread adds to a graph that the one before it began.
  const Tensor x = leaf({2});
  Tensor y = x * 1;
  for (int i = 0; i < 5; ++i) {
    on_another_thread([&] { y = y * x + y; });
  }
  on_another_thread([&] { sum(y).backward(); });
  EXPECT_THAT(values(y), ElementsAre(2 * 243));      // x (x + 1)^5
  EXPECT_THAT(values(x.grad()), ElementsAre(1053));  // (x + 1)^5 + 5 x (x + 1)^4
}

TEST(Threads, RecomputationKeepsItsNumbersWhileOthersDraw) {
  manual_seed(6);
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) {
      RankContext::current().default_generator().reserve(3);
    }
  });
  for (int step = 0; step < 100; ++step) {
    const Tensor x = leaf({1, 1, 1, 1, 1, 1, 1, 1});
    Tensor kept;
    const auto body = [&](const TensorList& in) {
      const Tensor y = dropout(dropout(in[0], 0.5), 0.5);
      kept = kept.defined() ? kept : y.detach();
      return y;
    };
    sum(checkpoint(body, {x})).backward();
    EXPECT_EQ(values(x.grad()), values(kept));
  }
  done = true;
  other.join();
}

TEST(Threads, PassesMeetInLeaves) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 100;
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = leaf({5, 5, 5});
  std::atomic<int> hooks = 0;
  x.register_post_accumulate_grad_hook([&](const Tensor&) { ++hooks; });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        sum(x * static_cast<double>(t + 1) + y * x).backward();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(values(x.grad()), Each(Eq(kRounds * (1 + 2 + 3 + kThreads * 5))));
  EXPECT_THAT(values(y.grad()), ElementsAre(300, 600, 900));
  EXPECT_EQ(hooks, kThreads * kRounds);
}

TEST(Threads, GradientsOfOneModelAreIndependent) {
  const Model model;
  const auto gradient_of = [&](uint64_t seed) {
    return values(grad(sum(model(input(seed))), {model.w1})[0]);
  };
  std::vector<std::vector<float>> expected;
  for (uint64_t i = 0; i < 3; ++i) {
    expected.push_back(gradient_of(i));
  }
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) {
        EXPECT_EQ(gradient_of(i), expected[i]);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_FALSE(model.w1.grad().defined());
}

TEST(Threads, ARetainedGraphServesSeveralPasses) {
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = sum(tanh(x * x) * 0 + x * x * x);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        y.backward({}, /*retain_graph=*/true);
        EXPECT_THAT(values(grad(y, {x}, {}, {.retain_graph = true})[0]), ElementsAre(3, 12, 27));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(values(x.grad()), ElementsAre(450, 1800, 4050));
}

TEST(Threads, APassThatReleasesRefusesToMeetAnother) {
  const Tensor x = leaf({2});
  const Tensor h = square(x);
  const Tensor y = sum(h * 2);
  const Tensor z = sum(h * 5);
  std::barrier both(2);
  h.register_hook([&](const Tensor&) {
    both.arrive_and_wait();  // in the middle of h's node
    both.arrive_and_wait();
    return Tensor();
  });
  std::thread other([&] { y.backward(); });
  both.arrive_and_wait();
  EXPECT_THAT([&] { z.backward(); }, ::testing::ThrowsMessage<RuntimeError>(
                                         ::testing::HasSubstr("two threads run backward")));
  both.arrive_and_wait();
  other.join();
  EXPECT_THAT(values(x.grad()), ElementsAre(8));
}

// What one thread allocates, another frees.
TEST(Threads, HandTensorsOver) {
  std::barrier both(2);
  TensorList shared(2);
  std::vector<std::thread> threads;
  for (size_t me = 0; me < 2; ++me) {
    threads.emplace_back([&, me] {
      for (int round = 0; round < 50; ++round) {
        shared[me] = ones({1 << 10}) * static_cast<double>(round);
        both.arrive_and_wait();
        Tensor taken = shared[1 - me];
        both.arrive_and_wait();
        shared[me] = {};
        both.arrive_and_wait();
        EXPECT_THAT(values(taken), Each(Eq(static_cast<float>(round))));
        taken = {};
        both.arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace tapestry
