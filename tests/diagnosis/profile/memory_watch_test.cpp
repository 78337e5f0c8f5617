#include "diagnosis/profile/memory_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "autograd/kernels/machine/team_state.h"
#include "autograd/tensor/error.h"

namespace tapestry::profile {
namespace {

using Block = CachingAllocator::Block;
constexpr int64_t kKib = 1024;

Block allocate(CachingAllocator& allocator,
               std::string_view op,
               int64_t bytes,
               MemoryKind kind = MemoryKind::kActivation) {
  const kernels::TeamStateGuard guard({.op = op});
  return allocator.allocate(bytes, kind);
}

int64_t bytes_of(const std::vector<HeldMemory>& held, const std::string& op) {
  int64_t sum = 0;
  for (const HeldMemory& h : held) {
    sum += h.op == op ? h.bytes : 0;
  }
  return sum;
}

TEST(MemoryWatch, RemembersWhoHeldThePeak) {
  const auto allocator = make_ref<CachingAllocator>();
  const Block before = allocate(*allocator, "early", 4 * kKib, MemoryKind::kParameter);
  MemoryWatch watch(allocator);
  const Block a = allocate(*allocator, "a", 64 * kKib);
  const Block b = allocate(*allocator, "b", 32 * kKib);
  allocator->deallocate(a);
  const Block c = allocate(*allocator, "c", 8 * kKib);
  const HeldAtPeak peak = watch.at_peak();
  EXPECT_EQ(peak.bytes, allocator->stats().peak_bytes);
  EXPECT_EQ(bytes_of(peak.held, "a"), a.bytes);
  EXPECT_EQ(bytes_of(peak.held, "b"), b.bytes);
  EXPECT_EQ(bytes_of(peak.held, "c"), 0);
  EXPECT_EQ(bytes_of(peak.held, "before the profile"), before.bytes);
  EXPECT_EQ(peak.held.front().op, "a");
  EXPECT_EQ(bytes_of(watch.held(), "a"), 0);
  EXPECT_EQ(bytes_of(watch.held(), "c"), c.bytes);
  allocator->reset_peak();
  EXPECT_EQ(watch.at_peak().bytes, allocator->stats().peak_bytes);
  EXPECT_EQ(bytes_of(watch.at_peak().held, "c"), c.bytes);
  for (const Block& block : {before, b, c}) {
    allocator->deallocate(block);
  }
}

TEST(MemoryWatch, BlocksGetTheirNamesLater) {
  const auto allocator = make_ref<CachingAllocator>();
  MemoryWatch watch(allocator);
  const Block kept = allocate(*allocator, "", 16 * kKib, MemoryKind::kParameter);
  const Block gone = allocate(*allocator, "", 16 * kKib);
  allocator->deallocate(gone);
  const Block late = allocate(*allocator, "", 2 * kKib, MemoryKind::kOptimizer);
  watch.label(kept.data, "layers.0", "parameter weight");
  watch.label(late.data, "layers.0", "exp_avg of weight");
  watch.label(&watch, "nowhere", "no block");
  const HeldAtPeak peak = watch.at_peak();
  EXPECT_EQ(bytes_of(peak.held, "parameter weight"), kept.bytes);
  EXPECT_EQ(bytes_of(peak.held, "exp_avg of weight"), 0) << "it came after the peak";
  EXPECT_EQ(peak.bytes, allocator->stats().peak_bytes);
  EXPECT_EQ(bytes_of(watch.held(), "exp_avg of weight"), late.bytes);
  allocator->deallocate(kept);
  allocator->deallocate(late);
  EXPECT_TRUE(watch.held().empty());
}

// The sum is the allocator's peak at any moment, whatever happens.
TEST(MemoryWatch, SumsToThePeakOfARandomSequence) {
  const auto allocator = make_ref<CachingAllocator>();
  MemoryWatch watch(allocator);
  std::mt19937 random(5);
  std::vector<Block> blocks;
  constexpr const char* kOps[] = {"a", "b", "c"};
  for (int i = 0; i < 3000; ++i) {
    if (random() % 2 == 0 || blocks.empty()) {
      blocks.push_back(allocate(*allocator, kOps[random() % 3],
                                static_cast<int64_t>(random() % (2 * 1024 * kKib))));
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      allocator->deallocate(blocks.back());
      blocks.pop_back();
    }
    if (!blocks.empty() && random() % 10 == 0) {
      watch.label(blocks.front().data, "m", kOps[random() % 3]);
    }
    if (random() % 500 == 0) {
      allocator->reset_peak();
    }
    const HeldAtPeak peak = watch.at_peak();
    ASSERT_EQ(peak.bytes, allocator->stats().peak_bytes) << i;
    int64_t sum = 0;
    for (const HeldMemory& held : peak.held) {
      ASSERT_GT(held.bytes, 0);
      sum += held.bytes;
    }
    ASSERT_EQ(sum, peak.bytes);
  }
  for (const Block& block : blocks) {
    allocator->deallocate(block);
  }
}

TEST(MemoryWatch, NotesThePointsThatItIsAskedFor) {
  const auto allocator = make_ref<CachingAllocator>();
  MemoryWatch watch(allocator);
  allocator->deallocate(allocate(*allocator, "a", kKib));
  watch.start_points();
  allocator->deallocate(allocate(*allocator, "a", kKib));
  const std::vector<MemoryPoint> points = watch.take_points();
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].bytes, kKib);
  EXPECT_EQ(points[1].bytes, 0);
  allocator->deallocate(allocate(*allocator, "a", kKib));
  EXPECT_TRUE(watch.take_points().empty());
}

TEST(MemoryWatch, ARequestThatCannotBeServedNamesSmallBlocksToo) {
  const auto allocator = make_ref<CachingAllocator>();
  MemoryWatch watch(allocator);
  const Block small = allocate(*allocator, "tiny_op", kKib);
  EXPECT_THAT([&] { allocator->allocate(int64_t{1} << 60, MemoryKind::kActivation); },
              ::testing::ThrowsMessage<RuntimeError>(
                  ::testing::HasSubstr("activations in 1 block, tiny_op")));
  allocator->deallocate(small);
}

}  // namespace
}  // namespace tapestry::profile
