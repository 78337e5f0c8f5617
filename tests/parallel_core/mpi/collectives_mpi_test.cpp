// Run by mpirun: every rank runs every test.
#include <gtest/gtest.h>

#include <exception>
#include <iostream>
#include <memory>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/distributed.h"
#include "parallel_core/parallel_state.h"
#include "tests/parallel_core/comm/collectives_suite.h"
#include "tests/parallel_core/comm/while_computing.h"

namespace tapestry {
namespace {

std::unique_ptr<Distributed>& job() {
  static std::unique_ptr<Distributed> job;
  return job;
}

TEST(Mpi, RanksKnowThemselves) {
  ProcessGroup& world = *job()->world();
  EXPECT_TRUE(started_as_rank());
  EXPECT_GT(world.size(), 1);
  EXPECT_EQ(RankContext::current().rank(), world.rank());
  EXPECT_EQ(RankContext::current().world_size(), world.size());
}

TEST(Mpi, Collectives) { testing::check_collectives(*job()->world()); }

TEST(Mpi, GroupsOfALayout) {
  initialize_model_parallel({.tensor_model_parallel_size = 2}, job()->world());
  const Tensor x = full({100}, get_world_group().rank());
  get_tensor_model_parallel_group().all_reduce(x);
  get_data_parallel_group().all_reduce(x);
  const int size = get_world_group().size();
  EXPECT_EQ(x.at({99}), size * (size - 1) / 2);
  destroy_model_parallel();
}

TEST(Mpi, CollectivesEndBeforeTheyAreWaitedFor) {
  ProcessGroup& world = *job()->world();
  EXPECT_EQ(job()->progress_text(), "collectives move on while ranks compute");
  const int64_t n = 1'000'000;
  const Tensor sum = full({n}, world.rank() + 1);
  const Tensor gathered = zeros({n * world.size()});
  const WorkHandle reduction = world.all_reduce_async(sum);
  const WorkHandle gather = world.all_gather_async(gathered, full({n}, world.rank()));
  EXPECT_TRUE(testing::is_done_while_computing(*reduction));
  EXPECT_TRUE(testing::is_done_while_computing(*gather));
  EXPECT_EQ(sum.at({n - 1}), world.size() * (world.size() + 1) / 2);
  EXPECT_EQ(gathered.at({n * world.size() - 1}), world.size() - 1);
}

// More bytes than MPI can count in one message.
TEST(Mpi, AMessageThatIsSentInParts) {
  ProcessGroup& world = *job()->world();
  const int64_t n = (int64_t{1} << 30U) + 12345;
  if (world.rank() == 0) {
    const Tensor x = zeros({n}, kBool);
    x.data<bool>()[n - 1] = true;
    world.send(x, 1);
  } else if (world.rank() == 1) {
    const Tensor x = full({n}, 1, kBool);
    world.receive(x, 0);
    EXPECT_EQ(x.at({0}), 0);
    EXPECT_EQ(x.at({(int64_t{1} << 30U) + 100}), 0);
    EXPECT_EQ(x.at({n - 1}), 1);
  }
}

}  // namespace
}  // namespace tapestry

int main(int argc, char** argv) {
  std::unique_ptr<tapestry::Distributed>& job = tapestry::job();
  job = std::make_unique<tapestry::Distributed>(argc, argv);
  try {
    GTEST_FLAG_SET(brief, job->world()->rank() != 0);
    testing::InitGoogleTest(&argc, argv);
    tapestry::set_num_threads(1);
    const int result = RUN_ALL_TESTS();
    job->finish();
    job.reset();
    return result;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    job->announce(error.what());
    job->abort(1);
  }
}
