// Kernels' working memory comes from the caching allocator and is counted as workspace.
#include "autograd/kernels/machine/scratch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "autograd/tensor/rank_context.h"

namespace tapestry {
namespace {

int64_t workspace() {
  return memory_stats().current_by_kind[static_cast<size_t>(MemoryKind::kWorkspace)];
}

TEST(Scratch, IsCountedAlignedAndUsedAgain) {
  RankContext context;
  const RankContextGuard guard(context);
  for (const int64_t bytes : {0, 1, 1000, 1 << 20}) {
    const void* first = nullptr;
    for (int round = 0; round < 2; ++round) {
      const int64_t from_system = memory_stats().system_allocations;
      const kernels::Scratch scratch(bytes);
      std::memset(scratch.get(), 1, static_cast<size_t>(bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch.get()) % 64, 0U);
      EXPECT_GE(workspace(), bytes);
      if (round == 0) {
        first = scratch.get();
      } else {
        EXPECT_EQ(scratch.get(), first);
        EXPECT_EQ(memory_stats().system_allocations, from_system);
      }
    }
    EXPECT_EQ(workspace(), 0);
  }
}

TEST(Scratch, GoesBackToWhereItCameFrom) {
  RankContext first;
  RankContext second;
  {
    RankContextGuard in_first(first);
    const auto scratch = std::make_unique<kernels::Scratch>(5000);
    EXPECT_GT(first.allocator().stats().current_bytes, 0);
    const RankContextGuard in_second(second);
    const kernels::Scratch other(5000);
    EXPECT_GT(second.allocator().stats().current_bytes, 0);
  }
  EXPECT_EQ(first.allocator().stats().current_bytes, 0);
  EXPECT_EQ(second.allocator().stats().current_bytes, 0);
}

}  // namespace
}  // namespace tapestry
