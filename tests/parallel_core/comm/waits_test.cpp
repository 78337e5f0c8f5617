#include "parallel_core/comm/waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/communicator_group.h"
#include "parallel_core/comm/thread_ranks.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const RankHosts kTwoHosts({"alpha", "alpha", "beta", "beta"});
const RankHosts kOneHost({"alpha", "alpha", "alpha", "alpha"});

Straggler find(const std::vector<RankWaits>& waits, const RankHosts& hosts) {
  std::map<std::string, double> best_rates;
  return find_straggler(waits, hosts, best_rates);
}

// Of ten seconds; each waits for that rank.
RankWaits waits_for(int rank, double waited) {
  return {.seconds = 10, .waited = waited, .late = rank, .late_waited = waited};
}

TEST(RankHosts, NamesRanksWithTheirHostsWhereThereAreSeveral) {
  EXPECT_EQ(RankHosts().name_of(3), "rank 3");
  EXPECT_EQ(RankHosts().host_of(3), "");
  EXPECT_EQ(kOneHost.name_of(3), "rank 3");
  EXPECT_EQ(kTwoHosts.name_of(3), "rank 3 on beta");
  EXPECT_FALSE(kOneHost.several());
  EXPECT_TRUE(kTwoHosts.several());
}

TEST(RankHosts, NamesHostsAllOfWhoseRanksAreMeant) {
  EXPECT_EQ(kTwoHosts.whole_hosts({false, false, true, true}), "host beta (ranks 2 and 3)");
  EXPECT_EQ(kTwoHosts.whole_hosts({false, true, false, true}), "");
  EXPECT_EQ(kOneHost.whole_hosts({true, true, true, true}), "");
  EXPECT_EQ(RankHosts({"a", "b", "c"}).whole_hosts({false, true, true}),
            "host b (rank 1), host c (rank 2)");
  std::vector<std::string> names(6, "big");
  names.emplace_back("own");
  EXPECT_EQ(RankHosts(names).whole_hosts({true, true, true, true, true, true, false}),
            "host big (ranks 0, 1, 2, 3 and 2 more)");
}

TEST(Waits, TextsOfThemComeBack) {
  const RankWaits waits{10, 5, 2, 4, 3, 0.5, 1e6, 0.25};
  const RankWaits again = RankWaits::parse(waits.serialize());
  EXPECT_EQ(again.serialize(), waits.serialize());
  EXPECT_EQ(again.remote_bytes, 1e6);
}

TEST(Waits, TheRankForWhichTheOthersWaitIsNamed) {
  const std::vector<RankWaits> waits = {waits_for(2, 5), waits_for(2, 4), waits_for(0, 0.3),
                                        waits_for(2, 6)};
  const Straggler found = find(waits, kTwoHosts);
  EXPECT_EQ(found.what, "rank 2 on beta");
  EXPECT_EQ(found.text,
            "rank 2 on beta holds up the job: the others wait 50 % of the time, it waits 3 %");
}

// As in a ring: each waits for the one before it.
TEST(Waits, AChainOfWaitsIsFollowed) {
  const std::vector<RankWaits> waits = {waits_for(3, 5), waits_for(0, 0.5), waits_for(1, 5),
                                        waits_for(2, 5)};
  EXPECT_EQ(find(waits, kOneHost).what, "rank 1");
}

TEST(Waits, NothingIsSaidOfJobsInOrder) {
  const auto said = [](const std::vector<RankWaits>& waits) { return find(waits, kTwoHosts).text; };
  // Short waits, waits in a circle, as in a pipeline, and waits of all alike.
  EXPECT_THAT(said({waits_for(2, 2), waits_for(2, 2), waits_for(0, 0), waits_for(2, 2)}),
              IsEmpty());
  EXPECT_THAT(said({waits_for(1, 5), waits_for(0, 5), waits_for(3, 5), waits_for(2, 5)}),
              IsEmpty());
  EXPECT_THAT(said({waits_for(2, 5), waits_for(2, 5), waits_for(0, 4), waits_for(2, 5)}),
              IsEmpty());
  // One rank alone that waits, and ranks that have told nothing.
  EXPECT_THAT(said({waits_for(2, 5), waits_for(2, 0), waits_for(0, 0), waits_for(2, 0)}),
              IsEmpty());
  EXPECT_THAT(said({waits_for(2, 5), {}, {}, {}}), IsEmpty());
}

// Of ten seconds, in which 12 MB come from the other host; all ranks wait alike.
std::vector<RankWaits> waits_for_network(double waited, double on_their_way) {
  std::vector<RankWaits> waits;
  for (const int peer : {2, 2, 0, 1}) {
    waits.push_back(waits_for(peer, waited));
    waits.back().remote = peer;
    waits.back().remote_waited = waited;
    waits.back().remote_bytes = 12e6;
    waits.back().remote_seconds = on_their_way;
  }
  return waits;
}

TEST(Waits, ALinkForWhichRanksWaitMostOfTheTimeIsNamedByItsEnds) {
  const Straggler found = find(waits_for_network(7, 6), kTwoHosts);
  EXPECT_EQ(found.what, "the network between alpha and beta");
  EXPECT_EQ(
      found.text,
      "the network between alpha and beta holds up the job: 4 ranks wait 70 % of the time for "
      "what comes over it, at 2 MB/s (rank 0 on alpha for rank 2 on beta)");
}

TEST(Waits, ALinkThatBecomesSlowIsNamedSooner) {
  std::map<std::string, double> best_rates;
  EXPECT_THAT(find_straggler(waits_for_network(3, 1.5), kTwoHosts, best_rates).text, IsEmpty());
  EXPECT_THAT(find_straggler(waits_for_network(5, 4), kTwoHosts, best_rates).text, IsEmpty());
  EXPECT_EQ(
      find_straggler(waits_for_network(5, 6), kTwoHosts, best_rates).text,
      "the network between alpha and beta holds up the job: 4 ranks wait 50 % of the time for "
      "what comes over it, at 2 MB/s, after 8 at best (rank 0 on alpha for rank 2 on beta)");
}

// Stages of a pipeline on two hosts wait for each other's messages, not for the network.
TEST(Waits, ALinkThatIsIdleIsNotBlamed) {
  EXPECT_THAT(find(waits_for_network(7, 0.5), kTwoHosts).text, IsEmpty());
}

TEST(WaitTally, DividesAWaitAtTheMessageThatAnnouncesTheData) {
  WaitTally tally(0, kTwoHosts);
  const double start = 100;
  tally.take(start);
  tally.fetch_begins(2, start + 3);
  tally.fetch_begins(3, start + 4);
  tally.fetch_ended(3, 50, start + 5);
  tally.fetch_ended(2, 100, start + 7);
  tally.add(start + 1, start + 7, 2, start + 3, start + 7);
  tally.add(start + 8, start + 9, 1, start + 8.5, start + 9);  // of the same host
  tally.add(start + 9, start + 9.5, -1, 0, 0);
  const RankWaits waits = tally.take(start + 10);
  EXPECT_EQ(waits.seconds, 10);
  EXPECT_EQ(waits.waited, 7.5);
  EXPECT_EQ(waits.late, 2);
  EXPECT_EQ(waits.late_waited, 2);
  EXPECT_EQ(waits.remote, 2);
  EXPECT_EQ(waits.remote_waited, 6);
  EXPECT_EQ(waits.remote_bytes, 150);
  EXPECT_EQ(waits.remote_seconds, 4);  // not twice where two are on their way
  EXPECT_EQ(tally.take(start + 11).waited, 0);
}

TEST(StragglerWatch, SpeaksInTheSecondPeriodAndOnce) {
  StragglerWatch watch(2);
  const RankHosts hosts;
  const auto period = [&](double waited_by_0) {
    watch.hear(0, waits_for(1, waited_by_0));
    watch.hear(1, waits_for(0, 0));
    return watch.look(hosts);
  };
  EXPECT_THAT(period(5), IsEmpty());
  EXPECT_THAT(period(6), HasSubstr("rank 1 holds up the job: the others wait 60 %"));
  EXPECT_THAT(period(5), IsEmpty());
  EXPECT_THAT(period(0), IsEmpty());
  EXPECT_THAT(period(5), IsEmpty());
  EXPECT_THAT(period(5), IsEmpty());  // said already, and in order for one period only
  EXPECT_THAT(period(0), IsEmpty());
  EXPECT_THAT(period(0), IsEmpty());
  EXPECT_THAT(period(5), IsEmpty());
  EXPECT_THAT(period(5), HasSubstr("rank 1 holds up the job"));
}

// Ranks that meet in collectives, one of which takes its time before each.
TEST(Stragglers, ARankThatIsLateIsNamed) {
  CommunicationOptions options;
  options.straggler_seconds = 0.3;
  options.hosts = std::make_shared<RankHosts>(kTwoHosts);
  std::string said;
  run_thread_ranks(
      4,
      [&](const std::shared_ptr<ProcessGroup>& world) {
        bool all_done = false;
        for (int step = 0; step < 2000 && !all_done; ++step) {
          if (world->rank() == 2) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
          }
          world->all_reduce(zeros({100000}));
          const std::string found = tell_waits(*world);
          if (world->rank() == 0 && !found.empty()) {
            said = found;
          }
          const Tensor done = full({1}, world->rank() == 0 && !said.empty() ? 1 : 0);
          world->all_reduce(done, ReduceOp::kMax);
          all_done = done.at({0}) != 0;
        }
      },
      options);
  EXPECT_THAT(said, AllOf(HasSubstr("rank 2 on beta holds up the job"), HasSubstr("it waits ")));
}

// What no rank of a host answers is said of the host.
TEST(Stragglers, AHostOfWhichNoRankAnswersIsNamed) {
  CommunicationOptions options;
  options.timeout_seconds = 0.5;
  options.hosts = std::make_shared<RankHosts>(kTwoHosts);
  std::string said;
  try {
    run_thread_ranks(
        4,
        [](const std::shared_ptr<ProcessGroup>& world) {
          if (world->rank() >= 2) {
            std::this_thread::sleep_for(std::chrono::seconds(3));
          }
          world->all_reduce(zeros({9}));
        },
        options);
  } catch (const CommError& error) {
    said = error.what();
  }
  EXPECT_THAT(said, AllOf(HasSubstr("on alpha has heard nothing for 0.5 seconds; cannot reach host "
                                    "beta (ranks 2 and 3): no rank there answers"),
                          HasSubstr("for rank 2 on beta, which does not answer")));
}

}  // namespace
}  // namespace tapestry
