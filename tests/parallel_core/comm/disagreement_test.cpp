// Ranks that do not get on: every one of them stops, and says who waits where for whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/communicator.h"
#include "parallel_core/comm/delayed_transport.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/comm/thread_transport.h"
#include "tests/message_of.h"

namespace tapestry::disagreement_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using World = std::shared_ptr<ProcessGroup>;

constexpr double kShort = 1.0;   // for ranks that never come
constexpr double kNever = 3600;  // the others must be found without it

// The CommError that each rank's body gets, and the one that comes out of the run as a whole. A
// body that comes to its end without one has no entry: its rank hears afterwards.
std::vector<std::string> reports(int world_size,
                                 const std::function<void(ProcessGroup&)>& body,
                                 double timeout = kNever) {
  std::vector<std::string> texts(static_cast<size_t>(world_size));
  const std::string thrown = message_of<CommError>([&] {
    run_thread_ranks(world_size,
                     [&](const World& world) {
                       try {
                         body(*world);
                       } catch (const CommError& error) {
                         texts[static_cast<size_t>(world->rank())] = error.what();
                         throw;
                       }
                     },
                     {.timeout_seconds = timeout});
  });
  std::erase(texts, "");
  texts.push_back(thrown);
  return texts;
}

TEST(Disagreement, AnotherCollective) {
  const auto texts = reports(2, [](ProcessGroup& world) {
    world.barrier();
    if (world.rank() == 0) {
      world.all_gather(zeros({2048}), zeros({1024}));
    } else {
      world.all_reduce(zeros({1024}));
    }
  });
  EXPECT_THAT(texts,
              Each(AllOf(StartsWith("the ranks disagree: rank "),
                         HasSubstr("all_gather #1 of world (float32, 1024 elements)"),
                         HasSubstr("all_reduce #1 of world (float32, 1024 elements, sum)"))));
}

TEST(Disagreement, AnotherSize) {
  const auto texts = reports(
      3, [](ProcessGroup& world) { world.all_reduce(zeros({world.rank() == 2 ? 11 : 10})); });
  EXPECT_THAT(texts,
              Each(AllOf(HasSubstr("rank 2"), HasSubstr("10 elements"), HasSubstr("11 elements"))));
}

TEST(Disagreement, AnotherDtype) {
  const auto texts = reports(2, [](ProcessGroup& world) {
    world.broadcast(zeros({5}, world.rank() == 0 ? kFloat32 : kBFloat16), 0);
  });
  EXPECT_THAT(texts.back(), AllOf(HasSubstr("broadcast #0 of world (float32, 5 elements, root 0)"),
                                  HasSubstr("(bfloat16, 5 elements, root 0)")));
}

TEST(Disagreement, AnotherReduction) {
  const auto texts = reports(2, [](ProcessGroup& world) {
    world.all_reduce(zeros({5}), world.rank() == 0 ? ReduceOp::kSum : ReduceOp::kMax);
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("5 elements, sum)"), HasSubstr("5 elements, max)"))));
}

TEST(Disagreement, AnotherRoot) {
  const auto texts = reports(3, [](ProcessGroup& world) {
    world.broadcast(zeros({5}), world.rank() == 1 ? 1 : 0);
    world.barrier();
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("root 0)"), HasSubstr("root 1)"))));
}

TEST(Disagreement, PiecesOfAnotherSize) {
  const auto texts = reports(2, [](ProcessGroup& world) {
    if (world.rank() == 0) {
      world.all_to_all(zeros({4}), zeros({4}), {2, 2}, {2, 2});
    } else {
      world.all_to_all(zeros({5}), zeros({4}), {3, 2}, {2, 2});
    }
  });
  EXPECT_THAT(texts.back(), AllOf(HasSubstr("all_to_all #0 of world"),
                                  HasSubstr("rank 0 sends 8 bytes, rank 1 expects 12")));
}

TEST(Disagreement, AMessageOfAnotherSize) {
  const auto texts = reports(2, [](ProcessGroup& world) {
    if (world.rank() == 0) {
      world.send(zeros({4}), 1);
    } else {
      world.receive(zeros({6}), 0);
    }
    world.barrier();
  });
  EXPECT_THAT(texts.back(),
              AllOf(HasSubstr("rank 1 is in receive #0 of world (float32, 6 elements"),
                    HasSubstr("rank 0 in send #0 of world (float32, 4 elements")));
}

TEST(Disagreement, ARankThatHasFinished) {
  const auto texts = reports(3, [](ProcessGroup& world) {
    if (world.rank() != 1) {
      world.all_reduce(zeros({4}));
    }
  });
  EXPECT_THAT(texts.back(),
              AllOf(HasSubstr("rank 1 has finished"), HasSubstr("all_reduce #0 of world")));
}

TEST(Disagreement, AMessageThatNobodyReceives) {
  const auto texts = reports(2, [](ProcessGroup& world) {
    if (world.rank() == 0) {
      world.send(zeros({4}), 1);  // small: done at once
    }
  });
  EXPECT_THAT(texts.back(), AllOf(HasSubstr("rank 1 has finished, but rank 0 is in send #0"),
                                  HasSubstr("which it never called")));
}

// Ranks 1 and 3 hear of the job's end from others: that one is on its way is known by its number.
TEST(Disagreement, AMessageThatComesWhenAllHaveFinished) {
  constexpr double kLate = 0.2;
  const std::string thrown = message_of<CommError>([&] {
    run_thread_ranks(4,
                     [](const World& world) {
                       if (world->rank() == 3) {
                         world->send(zeros({4}), 1);
                       }
                     },
                     {.timeout_seconds = kNever, .wrap_transport = [](auto inner) {
                        return make_delayed_transport(std::move(inner), kLate);
                      }});
  });
  EXPECT_THAT(thrown, AllOf(HasSubstr("rank 1 has finished, but rank 3 is in send #0"),
                            HasSubstr("which it never called")));
}

// Nothing goes from the one to the other: it has to ask.
TEST(Disagreement, ARankThatHasFinishedAndWasNeverTalkedTo) {
  const auto texts = reports(3, [](ProcessGroup& world) {
    if (world.rank() == 2) {
      world.receive(zeros({4}), 1);
    }
  });
  EXPECT_THAT(texts.back(), AllOf(HasSubstr("rank 2"), HasSubstr("receive #0 of world"),
                                  HasSubstr("has finished")));
}

TEST(Deadlock, AMessageThatNobodySends) {
  const auto texts = reports(2, [](ProcessGroup& world) {
    if (world.rank() == 0) {
      world.receive(zeros({4}), 1);
    }
    world.barrier();
  });
  EXPECT_THAT(
      texts,
      Each(AllOf(StartsWith("deadlock"),
                 HasSubstr("rank 0 waits in receive #0 of world (float32, 4 elements, from rank 1) "
                           "for rank 1, which waits in barrier #0 of world"),
                 HasSubstr("rank 1 waits in barrier #0 of world for rank 0"))));
}

TEST(Deadlock, TwoGroupsInAnotherOrder) {
  const auto texts = reports(4, [](ProcessGroup& world) {
    const auto a = world.new_group({0, 1, 2, 3}, "dp");
    const auto b = world.new_group({0, 1, 2, 3}, "pp");
    const Tensor x = zeros({10000});
    (world.rank() == 3 ? b : a)->all_reduce(x);
    (world.rank() == 3 ? a : b)->all_reduce(x);
  });
  EXPECT_THAT(texts,
              Each(AllOf(StartsWith("deadlock"), HasSubstr("rank 0 waits in all_reduce #0 of dp"),
                         HasSubstr("rank 3 waits in all_reduce #0 of pp"))));
}

TEST(Deadlock, ARing) {
  const auto texts = reports(5, [](ProcessGroup& world) {
    const Tensor x = zeros({100000});  // too large to be done before the receiver comes
    world.send(x, (world.rank() + 1) % 5);
    world.receive(x, (world.rank() + 4) % 5);
  });
  EXPECT_THAT(texts,
              Each(AllOf(StartsWith("deadlock"),
                         HasSubstr("rank 4 waits in send #0 of world (float32, 100000 "
                                   "elements, to rank 0) for rank 0, which waits in send #0"))));
}

TEST(Deadlock, AGroupThatOneRankMakesOtherwise) {
  const auto texts = reports(3, [](ProcessGroup& world) {
    const auto group = world.new_group(
        world.rank() == 2 ? std::vector<int>{2, 1, 0} : std::vector<int>{0, 1, 2}, "tp");
    group->all_reduce(zeros({3}));
  });
  EXPECT_THAT(texts, Each(AllOf(StartsWith("deadlock"), HasSubstr("rank 2 waits in all_reduce"))));
}

TEST(Timeout, ARankThatDoesNotCome) {
  std::atomic<int> stopped{0};
  const auto texts = reports(
      3,
      [&](ProcessGroup& world) {
        if (world.rank() == 1) {
          while (stopped < 2) {  // busy with something else until the others have given up
          }
        }
        struct Count {
          std::atomic<int>& stopped;
          ~Count() { ++stopped; }
        } const count{stopped};
        world.all_reduce(zeros({4}));
      },
      kShort);
  EXPECT_THAT(texts,
              Each(AllOf(HasSubstr("has heard nothing for 1 seconds"),
                         HasSubstr("rank 0 waits in all_reduce #0 of world (float32, 4 elements, "
                                   "sum) for rank 1, which does not answer (it is in no "
                                   "collective)"))));
}

TEST(Failure, StopsARankThatWaitsForAnother) {
  std::vector<std::string> texts(3);
  const std::string thrown = message_of<IoError>([&] {
    run_thread_ranks(3,
                     [&](const World& world) {
                       if (world->rank() == 2) {
                         throw IoError("the disk is full");
                       }
                       try {
                         world->receive(zeros({3}), 1 - world->rank());
                       } catch (const CommError& error) {
                         texts[static_cast<size_t>(world->rank())] = error.what();
                         throw;
                       }
                     },
                     {.timeout_seconds = kNever});
  });
  EXPECT_EQ(thrown, "the disk is full");
  EXPECT_EQ(texts[0], "rank 2 failed: the disk is full");
  EXPECT_EQ(texts[1], "rank 2 failed: the disk is full");
}

std::vector<std::unique_ptr<Communicator>> communicators(int count) {
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (std::unique_ptr<Transport>& end : make_thread_transports(count)) {
    ranks.push_back(std::make_unique<Communicator>(std::move(end), CommunicationOptions{}));
  }
  return ranks;
}

// Who fails for the reason that another has told already, however much later, does not repeat it;
// who fails for a reason of its own says so.
TEST(Failure, IsToldOnce) {
  for (const size_t first : {0, 1}) {
    for (const bool alike : {true, false}) {
      const std::vector<std::unique_ptr<Communicator>> ranks = communicators(2);
      EXPECT_TRUE(ranks[first]->announce("no such file"));
      ranks[first]->say_last_words();
      EXPECT_EQ(ranks[1 - first]->announce(alike ? "no such file" : "no such folder"), !alike)
          << first;
    }
  }
}

// A rank that has ended because it left the telling to another has told nobody.
TEST(Failure, IsToldWhereAnotherLeftItToALowerRank) {
  const std::vector<std::unique_ptr<Communicator>> ranks = communicators(3);
  ranks[1]->announce_failure("no such file");
  EXPECT_FALSE(ranks[2]->announce("no such file"));
  ranks[2]->say_last_words();
  EXPECT_TRUE(ranks[0]->announce("no such file"));
}

// A rank that drops its work while an exception passes leaves memory that others still read.
TEST(Failure, LeavesNoMemoryThatOthersRead) {
  EXPECT_THROW(run_thread_ranks(4,
                                [](const World& world) {
                                  std::array<WorkHandle, 8> works;
                                  for (WorkHandle& work : works) {
                                    work = world->all_reduce_async(full({300000}, world->rank()));
                                  }
                                  if (world->rank() == 3) {
                                    throw RuntimeError("overflow");
                                  }
                                  for (const WorkHandle& work : works) {
                                    work->wait();
                                  }
                                  world->barrier();
                                }),
               RuntimeError);
}

}  // namespace
}  // namespace tapestry::disagreement_test
