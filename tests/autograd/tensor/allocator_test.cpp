#include "autograd/tensor/allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/arena.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/pages_present.h"

namespace tapestry {
namespace {

using Block = CachingAllocator::Block;

constexpr MemoryKind kKind = MemoryKind::kActivation;

TEST(Allocator, BinsHaveAnEighthOfSlackAtMost) {
  EXPECT_EQ(CachingAllocator::rounded_size(0), 64);
  EXPECT_EQ(CachingAllocator::rounded_size(1), 64);
  EXPECT_EQ(CachingAllocator::rounded_size(64), 64);
  EXPECT_EQ(CachingAllocator::rounded_size(65), 128);
  EXPECT_EQ(CachingAllocator::rounded_size(512), 512);
  int64_t previous = 0;
  for (int64_t bytes = 1; bytes < (int64_t{1} << 40); bytes += 1 + bytes / 7) {
    const int64_t rounded = CachingAllocator::rounded_size(bytes);
    ASSERT_GE(rounded, bytes);
    ASSERT_EQ(rounded % 64, 0);
    ASSERT_GE(rounded, previous);
    ASSERT_EQ(CachingAllocator::rounded_size(rounded), rounded) << bytes;  // a bin's own size
    if (bytes > 512) {
      ASSERT_LE(rounded - bytes, bytes / 8 + 64) << bytes;
    }
    previous = rounded;
  }
}

TEST(Allocator, LargeFreshBlocksArePagedInByTheTeam) {
  if (system_ignores_paging_requests()) {
    GTEST_SKIP() << "the system ignores MADV_POPULATE_WRITE";
  }
  const int before = num_threads();
  const auto pages_of = [](int threads) {
    set_num_threads(threads);
    const auto allocator = make_ref<CachingAllocator>();
    const Block block = allocator->allocate(2 * CachingAllocator::kTouchedRequest, kKind);
    std::vector<bool> pages = pages_present(block.data, static_cast<size_t>(block.bytes));
    allocator->deallocate(block);
    return pages;
  };
  EXPECT_THAT(pages_of(2), testing::Each(true));
  EXPECT_THAT(pages_of(1), testing::Each(false));  // one thread has them as it uses them
  set_num_threads(before);
}

TEST(Allocator, DifferentBinsDoNotMix) {
  // Every bin boundary: a freed small block is reused for its own size only.
  const auto allocator = make_ref<CachingAllocator>();
  int64_t size = 64;
  for (;;) {
    const int64_t next = CachingAllocator::rounded_size(size + 1);
    if (next >= CachingAllocator::kLargeBlock) {
      break;
    }
    const Block small = allocator->allocate(size, kKind);
    ASSERT_EQ(small.bytes, size);
    allocator->deallocate(small);
    const int64_t system = allocator->stats().system_allocations;
    const Block large = allocator->allocate(next, kKind);
    ASSERT_EQ(large.bytes, next);
    ASSERT_EQ(allocator->stats().system_allocations, system + 1) << size << " " << next;
    std::memset(large.data, 1, static_cast<size_t>(large.bytes));
    allocator->deallocate(large);
    allocator->release_cache();
    size = next;
  }
}

TEST(Allocator, ReusesFreedBlocks) {
  const auto allocator = make_ref<CachingAllocator>();
  const Block first = allocator->allocate(1000, kKind);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.data) % 64, 0U);
  void* const address = first.data;
  allocator->deallocate(first);
  EXPECT_EQ(allocator->stats().current_bytes, 0);
  EXPECT_EQ(allocator->stats().reserved_bytes, first.bytes);
  const Block second = allocator->allocate(1010, kKind);  // the same bin
  EXPECT_EQ(second.data, address);
  EXPECT_EQ(allocator->stats().allocations, 2);
  EXPECT_EQ(allocator->stats().system_allocations, 1);
  allocator->deallocate(second);
  allocator->release_cache();
  EXPECT_EQ(allocator->stats().reserved_bytes, 0);
}

TEST(Allocator, CountsCurrentAndPeakByKind) {
  const auto allocator = make_ref<CachingAllocator>();
  const Block a = allocator->allocate(1024, MemoryKind::kActivation);
  const Block p = allocator->allocate(2048, MemoryKind::kParameter);
  MemoryStats stats = allocator->stats();
  EXPECT_EQ(stats.current_bytes, 3072);
  EXPECT_EQ(stats.current_by_kind[static_cast<size_t>(MemoryKind::kActivation)], 1024);
  EXPECT_EQ(stats.current_by_kind[static_cast<size_t>(MemoryKind::kParameter)], 2048);
  allocator->deallocate(a);
  stats = allocator->stats();
  EXPECT_EQ(stats.current_bytes, 2048);
  EXPECT_EQ(stats.peak_bytes, 3072);
  EXPECT_EQ(stats.peak_by_kind[static_cast<size_t>(MemoryKind::kActivation)], 1024);
  allocator->reset_peak();
  stats = allocator->stats();
  EXPECT_EQ(stats.peak_bytes, 2048);
  EXPECT_EQ(stats.peak_by_kind[static_cast<size_t>(MemoryKind::kActivation)], 0);
  allocator->release_cache();
  EXPECT_EQ(allocator->stats().reserved_bytes, 2048);
  allocator->deallocate(p);
}

TEST(Allocator, StatisticsArePrinted) {
  const auto allocator = make_ref<CachingAllocator>();
  const Block block = allocator->allocate(3 << 20, MemoryKind::kOptimizer);
  std::ostringstream out;
  out << allocator->stats();
  EXPECT_THAT(out.str(), ::testing::HasSubstr("3.0 MiB in use"));
  EXPECT_THAT(out.str(), ::testing::HasSubstr("optimizer"));
  allocator->deallocate(block);
  EXPECT_EQ(name_of(MemoryKind::kGradient), "gradients");
}

TEST(Allocator, LargeBlocksAreUsable) {
  const auto allocator = make_ref<CachingAllocator>();
  const Block block = allocator->allocate((int64_t{9} << 20) + 1, kKind);
  EXPECT_GE(block.bytes, (int64_t{9} << 20) + 1);
  std::memset(block.data, 1, static_cast<size_t>(block.bytes));
  allocator->deallocate(block);
}

TEST(Allocator, AFreedLargeBlockServesOtherSizes) {
  const auto allocator = make_ref<CachingAllocator>();
  constexpr int64_t kUnit = CachingAllocator::kLargeBlock;
  const Block fence = allocator->allocate(kUnit, kKind);
  const Block wide = allocator->allocate(6 * kUnit, kKind);
  const Block other_fence = allocator->allocate(kUnit, kKind);
  std::memset(wide.data, 1, static_cast<size_t>(wide.bytes));
  allocator->deallocate(wide);
  const int64_t reserved = allocator->stats().reserved_bytes;
  const int64_t system = allocator->stats().system_allocations;
  std::vector<Block> parts;
  for (int i = 0; i < 4; ++i) {  // 4 x 1.5 = 6
    parts.push_back(allocator->allocate(kUnit + kUnit / 2, kKind));
    std::memset(parts.back().data, 2, static_cast<size_t>(parts.back().bytes));
  }
  EXPECT_EQ(allocator->stats().reserved_bytes, reserved);
  EXPECT_EQ(allocator->stats().system_allocations, system);
  for (const int i : {1, 3, 0, 2}) {  // with either neighbour free, none, and both
    allocator->deallocate(parts[static_cast<size_t>(i)]);
  }
  const Block again = allocator->allocate(6 * kUnit, kKind);
  EXPECT_EQ(again.data, wide.data);
  EXPECT_EQ(allocator->stats().reserved_bytes, reserved);
  for (const Block& block : {fence, again, other_fence}) {
    allocator->deallocate(block);
  }
  allocator->release_cache();
  EXPECT_EQ(allocator->stats().reserved_bytes, 0);
  const Block fresh = allocator->allocate(8 * kUnit, kKind);
  EXPECT_EQ(allocator->stats().reserved_bytes, 8 * kUnit);
  EXPECT_EQ(*static_cast<const char*>(fresh.data), 0) << "the pages were given back";
  allocator->deallocate(fresh);
}

TEST(Allocator, LargeBlocksTakeTheSmallestHole) {
  const auto allocator = make_ref<CachingAllocator>();
  constexpr int64_t kUnit = CachingAllocator::kLargeBlock;
  std::vector<Block> blocks;
  for (const int64_t units : {4, 1, 2, 1, 3, 1}) {
    blocks.push_back(allocator->allocate(units * kUnit, kKind));
  }
  for (const size_t hole : {0U, 2U, 4U}) {
    allocator->deallocate(blocks[hole]);
  }
  const Block fit = allocator->allocate(2 * kUnit, kKind);
  EXPECT_EQ(fit.data, blocks[2].data);
  const Block next = allocator->allocate(3 * kUnit, kKind);
  EXPECT_EQ(next.data, blocks[4].data);
  for (const Block& block : {fit, next, blocks[1], blocks[3], blocks[5]}) {
    allocator->deallocate(block);
  }
}

// Moments that come after the first step's passes must not part the room of the next step's.
TEST(Allocator, WhatStaysLiesApartFromWhatComesAndGoes) {
  const auto allocator = make_ref<CachingAllocator>();
  constexpr int64_t kUnit = int64_t{1} << 20;
  allocator->deallocate(allocator->allocate(8 * kUnit, kKind));
  const Block gradient = allocator->allocate(kUnit, MemoryKind::kGradient);
  const Block moment = allocator->allocate(2 * kUnit, MemoryKind::kOptimizer);
  EXPECT_EQ(allocator->stats().reserved_bytes, 8 * kUnit) << "a huge page has moved";
  allocator->deallocate(gradient);
  const Block activations = allocator->allocate(8 * kUnit, kKind);
  EXPECT_EQ(allocator->stats().reserved_bytes, 10 * kUnit);
  allocator->deallocate(moment);  // its memory then serves anything
  const Block more = allocator->allocate(2 * kUnit, kKind);
  EXPECT_EQ(allocator->stats().reserved_bytes, 10 * kUnit);
  allocator->deallocate(more);
  allocator->deallocate(activations);
  allocator->release_cache();
  EXPECT_EQ(allocator->stats().reserved_bytes, 0);
}

// Memory that is free in pieces serves a block for which none of them has room.
TEST(Allocator, PiecesServeABlockThatIsLargerThanEach) {
  const auto allocator = make_ref<CachingAllocator>();
  constexpr int64_t kUnit = int64_t{2} << 20;
  std::vector<Block> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(allocator->allocate(kUnit, kKind));
    std::memset(blocks.back().data, i + 1, static_cast<size_t>(kUnit));
  }
  const int64_t reserved = allocator->stats().reserved_bytes;
  for (int step = 0; step < 3; ++step) {
    for (const size_t hole : {0U, 2U, 4U, 6U}) {
      allocator->deallocate(blocks[hole]);
    }
    const Block large = allocator->allocate(4 * kUnit, kKind);
    std::memset(large.data, 99, static_cast<size_t>(large.bytes));
    EXPECT_EQ(allocator->stats().reserved_bytes, reserved);
    for (const size_t hole : {0U, 2U, 4U, 6U}) {
      EXPECT_THAT(pages_present(blocks[hole].data, static_cast<size_t>(kUnit)),
                  testing::Each(false))
          << "they have moved, or went back to the system";
    }
    allocator->deallocate(large);
    for (const size_t hole : {0U, 2U, 4U, 6U}) {
      blocks[hole] = allocator->allocate(kUnit, kKind);
      std::memset(blocks[hole].data, static_cast<int>(hole) + 1, static_cast<size_t>(kUnit));
    }
    EXPECT_EQ(allocator->stats().reserved_bytes, reserved);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto* bytes = static_cast<const unsigned char*>(blocks[i].data);
      EXPECT_EQ(std::count(bytes, bytes + kUnit, static_cast<unsigned char>(i + 1)), kUnit);
    }
  }
  for (const Block& block : blocks) {
    allocator->deallocate(block);
  }
}

TEST(Allocator, LargeBlocksNeverOverlap) {
  const auto allocator = make_ref<CachingAllocator>();
  std::vector<std::pair<Block, unsigned char>> held;
  uint64_t state = 1;
  const auto random = [&](uint64_t below) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % below;
  };
  for (int i = 0; i < 600; ++i) {
    if (held.size() > 12 || (!held.empty() && random(2) == 0)) {
      const auto victim = held.begin() + static_cast<std::ptrdiff_t>(random(held.size()));
      const auto* bytes = static_cast<const unsigned char*>(victim->first.data);
      for (const int64_t at : {int64_t{0}, victim->first.bytes / 2, victim->first.bytes - 1}) {
        ASSERT_EQ(bytes[at], victim->second);
      }
      allocator->deallocate(victim->first);
      held.erase(victim);
    } else {
      const Block block =
          allocator->allocate(CachingAllocator::kLargeBlock + static_cast<int64_t>(random(3 << 20)),
                              random(2) == 0 ? kKind : MemoryKind::kParameter);
      const auto mark = static_cast<unsigned char>(random(256));
      std::memset(block.data, mark, static_cast<size_t>(block.bytes));
      held.emplace_back(block, mark);
    }
    const MemoryStats stats = allocator->stats();
    ASSERT_LE(stats.current_bytes, stats.reserved_bytes);
    if (random(50) == 0) {
      allocator->release_cache();
      ASSERT_EQ(allocator->stats().reserved_bytes, allocator->stats().current_bytes);
    }
  }
  for (const auto& [block, mark] : held) {
    allocator->deallocate(block);
  }
}

TEST(Allocator, SaysWhatTheSystemRefused) {
  const auto allocator = make_ref<CachingAllocator>();
  EXPECT_THAT([&] { allocator->allocate(int64_t{1} << 60, kKind); },
              ::testing::ThrowsMessage<RuntimeError>(
                  ::testing::HasSubstr("no memory for 1152921504606846976 bytes")));
  const Block block = allocator->allocate(1 << 20, kKind);  // and goes on
  allocator->deallocate(block);
}

TEST(Allocator, RefusesNegativeSizes) {
  const auto allocator = make_ref<CachingAllocator>();
  EXPECT_THROW(allocator->allocate(-1, kKind), ValueError);
}

TEST(Allocator, ThreadsMayShareIt) {
  const auto allocator = make_ref<CachingAllocator>();
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const Block block = allocator->allocate(64 + (i % 50) * 64, kKind);
        static_cast<char*>(block.data)[0] = static_cast<char>(t);
        allocator->deallocate(block);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(allocator->stats().current_bytes, 0);
  EXPECT_EQ(allocator->stats().allocations, 8000);
}

#ifndef __SANITIZE_THREAD__  // which leaves the process hardly any addresses
// Two arenas for each of 4096 ranks that are threads of one process.
TEST(Arena, ThousandsHaveRoomBesideEachOther) {
  constexpr int64_t kBlock = CachingAllocator::kLargeBlock;
  constexpr size_t kOthers = size_t{16} << 40U;
  std::deque<Arena> arenas(2 * 4096);
  std::vector<void*> blocks;
  for (Arena& arena : arenas) {
    blocks.push_back(arena.allocate(kBlock));
    ASSERT_NE(blocks.back(), nullptr) << blocks.size() << " arenas";
  }
  void* others =
      mmap(nullptr, kOthers, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  EXPECT_NE(others, MAP_FAILED) << "no addresses for anybody else";
  munmap(others, kOthers);
  for (size_t i = 0; i < blocks.size(); ++i) {
    arenas[i].deallocate(blocks[i], kBlock);
  }
}
#endif

TEST(Storage, TensorsReturnTheirMemory) {
  RankContext context;
  const RankContextGuard guard(context);
  {
    const Tensor x = zeros({1000});
    EXPECT_EQ(memory_stats().current_bytes, CachingAllocator::rounded_size(4000));
    const Tensor view = alias(x, {10}, {1}, 990);
    EXPECT_EQ(memory_stats().allocations, 1);
  }
  EXPECT_EQ(memory_stats().current_bytes, 0);
  const Tensor again = zeros({1000});
  EXPECT_EQ(memory_stats().system_allocations, 1);  // the cached block
}

TEST(Storage, KindGuardNestsAndEnds) {
  RankContext context;
  const RankContextGuard guard(context);
  const auto current = [](MemoryKind kind) {
    return memory_stats().current_by_kind[static_cast<size_t>(kind)];
  };
  {
    const MemoryKindGuard parameters(MemoryKind::kParameter);
    const Tensor p = zeros({16});
    {
      const MemoryKindGuard gradients(MemoryKind::kGradient);
      const Tensor g = zeros({16});
      EXPECT_EQ(current(MemoryKind::kGradient), 64);
    }
    EXPECT_EQ(current(MemoryKind::kGradient), 0);
    EXPECT_EQ(current(MemoryKind::kParameter), 64);
  }
  const Tensor x = zeros({16});
  EXPECT_EQ(current(MemoryKind::kActivation), 64);
}

TEST(Storage, MayOutliveItsContext) {
  Tensor survivor;
  {
    RankContext context;
    const RankContextGuard guard(context);
    survivor = ones({100});
  }
  EXPECT_EQ(survivor.at({99}), 1);
}

TEST(Storage, VersionsCount) {
  const Tensor x = zeros({2});
  EXPECT_EQ(x.version(), 0U);
  x.bump_version();
  x.bump_version();
  EXPECT_EQ(x.version(), 2U);
  EXPECT_EQ(x.storage()->version(), 2U);
}

}  // namespace
}  // namespace tapestry
