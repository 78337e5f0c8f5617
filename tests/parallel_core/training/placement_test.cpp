#include "parallel_core/training/ranks/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <numeric>

#include "autograd/kernels/machine/team.h"
#include "parallel_core/comm/thread_ranks.h"
#include "tests/temp_dir.h"

namespace tapestry::placement_test {
namespace {

using data::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<int> from_to(int first, int last) {
  std::vector<int> numbers(static_cast<size_t>(last - first + 1));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

RankPlacement on(std::string host, std::vector<int> cores, std::vector<int> nodes, int threads) {
  return {.host = std::move(host),
          .cores = std::move(cores),
          .numa_nodes = std::move(nodes),
          .threads = threads};
}

TEST(CpuList, IsReadAsTheKernelWritesIt) {
  EXPECT_THAT(parse_cpu_list("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(parse_cpu_list("5"), ElementsAre(5));
  EXPECT_THAT(parse_cpu_list("4,2-3,3"), ElementsAre(2, 3, 4));
  // A node of memory alone, and what is no list.
  for (const char* text : {"", "\n", "none", "-3", "7-", "0-99999999999", "3000000"}) {
    EXPECT_THAT(parse_cpu_list(text), IsEmpty()) << text;
  }
  EXPECT_THAT(parse_cpu_list("1,x"), ElementsAre(1));
}

TEST(CpuList, IsWrittenInTheSameForm) {
  for (const char* text : {"0-3,8,10-11", "5", "", "0,2,4"}) {
    EXPECT_EQ(cpu_list(parse_cpu_list(text)), text);
  }
}

TEST(NumaNodesOfTheSystem, AreItsFolders) {
  TempDir dir;
  dir.write("node/node0/cpulist", "0-3,8-11\n");
  dir.write("node/node1/cpulist", "4-7\n");
  dir.write("node/node2/cpulist", "\n");  // memory alone
  dir.write("node/nodes/cpulist", "1\n");
  dir.write("node/possible", "0-2\n");
  const NumaNodes nodes = read_numa_nodes(dir.file("node"));
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_THAT(nodes.at(0), ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_THAT(nodes.at(1), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(read_numa_nodes(dir.file("missing")), IsEmpty());
}

// The process's own mask, narrowed as Slurm does it.
TEST(Placement, IsThatOfTheProcess) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  const RankPlacement whole = RankPlacement::own();
  EXPECT_EQ(static_cast<int>(whole.cores.size()), CPU_COUNT(&before));
  EXPECT_EQ(whole.threads, num_threads());
  const int last = whole.cores.back();
  cpu_set_t narrow;
  CPU_ZERO(&narrow);
  CPU_SET(static_cast<size_t>(last), &narrow);
  ASSERT_EQ(::sched_setaffinity(0, sizeof narrow, &narrow), 0);
  const RankPlacement one = RankPlacement::own({{0, {last + 1}}, {3, {last, last + 2}}});
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_THAT(one.cores, ElementsAre(last));
  EXPECT_THAT(one.numa_nodes, ElementsAre(3));
}

TEST(Placement, SaysHostCoresNodesAndThreads) {
  EXPECT_EQ(on("a", {3}, {0}, 1).describe(), "host a, core 3 of NUMA node 0, 1 thread");
  EXPECT_EQ(on("a", from_to(0, 7), {0, 1}, 8).describe(),
            "host a, cores 0-7 of NUMA nodes 0-1, 8 threads");
  EXPECT_EQ(on("a", {0, 2}, {}, 2).describe(), "host a, cores 0,2, 2 threads");
  EXPECT_THAT(placement_lines({on("a", {0}, {0}, 1), on("b", {0}, {0}, 1)}),
              ElementsAre("rank 0: host a, core 0 of NUMA node 0, 1 thread",
                          "rank 1: host b, core 0 of NUMA node 0, 1 thread"));
}

TEST(Placement, IsKnownToAllRanks) {
  run_thread_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const int rank = world->rank();
    const auto all = gather_placements(
        *world, on(concat("host ", rank), from_to(rank, 2 * rank), {rank}, rank + 1));
    ASSERT_EQ(all.size(), 3U);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(all[static_cast<size_t>(i)], on(concat("host ", i), from_to(i, 2 * i), {i}, i + 1));
    }
  });
}

TEST(PlacementWarnings, NoneWhereRanksShareNothing) {
  EXPECT_THAT(placement_warnings({on("a", from_to(0, 7), {0}, 8), on("a", from_to(8, 15), {1}, 8)}),
              IsEmpty());
  // One thread is on one node at a time; unbound ranks that leave each other room.
  EXPECT_THAT(placement_warnings({on("a", from_to(0, 7), {0, 1}, 1)}), IsEmpty());
  // Each host has cores of the same numbers.
  EXPECT_THAT(placement_warnings({on("a", from_to(0, 3), {0}, 4), on("b", from_to(0, 3), {0}, 4)}),
              IsEmpty());
  // A system that does not tell.
  EXPECT_THAT(placement_warnings({on("a", {}, {}, 8)}), IsEmpty());
}

TEST(PlacementWarnings, ThreadsAcrossNumaNodes) {
  const auto found =
      placement_warnings({on("a", from_to(0, 3), {0}, 4), on("a", from_to(4, 11), {0, 1}, 8),
                          on("a", from_to(12, 15), {1}, 4), on("b", from_to(4, 11), {0, 1}, 8)});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0], AllOf(HasSubstr("ranks 1,3, the first of them on host a, cores 4-11 of "
                                        "NUMA nodes 0-1, 8 threads"),
                              HasSubstr("--cpus-per-task"), HasSubstr("a multiple of 2")));
}

TEST(PlacementWarnings, MoreThreadsThanCores) {
  // Ranks that nobody has bound take all cores each.
  auto found = placement_warnings({on("a", from_to(0, 7), {0}, 8), on("a", from_to(0, 7), {0}, 8)});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0], AllOf(HasSubstr("host a: 2 ranks with 16 threads on cores 0-7"),
                              HasSubstr("OMP_NUM_THREADS, or training_config.num_threads, to 4"),
                              Not(HasSubstr("at most"))));
  found = placement_warnings(
      {on("b", {2}, {0}, 1), on("b", {2}, {0}, 1), on("a", from_to(0, 7), {0}, 8)});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0], AllOf(HasSubstr("host b: 2 ranks with 2 threads on core 2"),
                              HasSubstr("to 1 and start at most 1 rank there")));
}

}  // namespace
}  // namespace tapestry::placement_test
