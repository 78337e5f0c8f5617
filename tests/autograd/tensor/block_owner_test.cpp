#include "autograd/tensor/block_owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autograd/kernels/machine/team_state.h"
#include "autograd/tensor/allocator.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/thread_state.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kTooMuch = int64_t{1} << 60;

// Blocks that the given op of a module would have asked for.
std::vector<CachingAllocator::Block> blocks_of(CachingAllocator& allocator,
                                               std::string_view op,
                                               const std::string& module,
                                               int64_t bytes,
                                               int count,
                                               MemoryKind kind = MemoryKind::kActivation) {
  const kernels::TeamStateGuard guard({.op = op});
  const std::string* outer = std::exchange(thread_state().module, &module);
  std::vector<CachingAllocator::Block> blocks;
  for (int i = 0; i < count; ++i) {
    blocks.push_back(allocator.allocate(bytes, kind));
  }
  thread_state().module = outer;
  return blocks;
}

TEST(HeldMemory, ARefusedRequestNamesTheTenLargest) {
  const auto allocator = make_ref<CachingAllocator>();
  static const std::string kLayer = "layers.0.mlp";
  std::vector<CachingAllocator::Block> held;
  const auto keep = [&](const std::vector<CachingAllocator::Block>& blocks) {
    held.insert(held.end(), blocks.begin(), blocks.end());
  };
  static constexpr const char* kOps[] = {"op_a", "op_b", "op_c", "op_d", "op_e", "op_f",
                                         "op_g", "op_h", "op_i", "op_j", "op_k"};
  int64_t size = 1;
  for (const char* op : kOps) {
    keep(blocks_of(*allocator, op, kLayer, size++ * kMib, 2));
  }
  EXPECT_THAT([&] { allocator->allocate(kTooMuch, MemoryKind::kActivation); },
              ThrowsMessage<RuntimeError>(
                  AllOf(HasSubstr("22.0 MiB  activations in 2 blocks, op_k, layers.0.mlp"),
                        HasSubstr("4.0 MiB  activations in 2 blocks, op_b, layers.0.mlp"),
                        Not(HasSubstr("op_a")), HasSubstr("2.0 MiB  by 1 others"))));
  // Freed blocks are held by nobody.
  for (const CachingAllocator::Block& block : held) {
    allocator->deallocate(block);
  }
  EXPECT_THAT([&] { allocator->allocate(kTooMuch, MemoryKind::kActivation); },
              ThrowsMessage<RuntimeError>(Not(HasSubstr("largest holders"))));
}

TEST(HeldMemory, ALimitNamesThem) {
  const auto allocator = make_ref<CachingAllocator>();
  static const std::string kNowhere;
  const auto held = blocks_of(*allocator, "linear", kNowhere, 8 * kMib, 1, MemoryKind::kParameter);
  allocator->set_limit(8 * kMib);
  EXPECT_THAT([&] { allocator->allocate(kMib, MemoryKind::kActivation); },
              ThrowsMessage<RuntimeError>(
                  AllOf(HasSubstr("the limit is 8.0 MiB"), HasSubstr("largest holders"),
                        HasSubstr("8.0 MiB  parameters in 1 block, linear\n"))));
  allocator->deallocate(held.front());
}

TEST(HeldMemory, OpsAreNamedInBothPasses) {
  EXPECT_EQ(op_text({.op = "linear"}), "linear");
  EXPECT_EQ(op_text({.backward_of = "linear"}), "backward of linear");
  EXPECT_EQ(op_text({.op = "zeros", .backward_of = "linear"}), "zeros in the backward of linear");
  EXPECT_EQ(op_text({}), "");
}

class Listener final : public AllocationObserver {
 public:
  void allocated(const void* data,
                 int64_t bytes,
                 const BlockOwner& /*owner*/,
                 int64_t current,
                 bool at_peak) override {
    blocks[data] = bytes;
    last_current = current;
    peaks += at_peak ? 1 : 0;
  }
  void deallocated(const void* data,
                   int64_t bytes,
                   MemoryKind /*kind*/,
                   int64_t current) noexcept override {
    wrong += blocks[data] == bytes ? 0 : 1;
    blocks.erase(data);
    last_current = current;
  }
  void peak_was_reset() override { ++resets; }
  std::vector<HeldMemory> held() const override { return {{.module = "mine", .bytes = kMib}}; }

  std::map<const void*, int64_t> blocks;
  int64_t last_current = 0;
  int peaks = 0;
  int resets = 0;
  int wrong = 0;
};

TEST(AllocationObserver, IsToldOfEveryBlock) {
  const auto allocator = make_ref<CachingAllocator>();
  Listener listener;
  allocator->set_observer(&listener);
  const auto small = allocator->allocate(100, MemoryKind::kActivation);
  const auto large = allocator->allocate(3 * kMib, MemoryKind::kActivation);
  EXPECT_EQ(listener.blocks,
            (std::map<const void*, int64_t>{{small.data, small.bytes}, {large.data, large.bytes}}));
  EXPECT_EQ(listener.last_current, allocator->stats().current_bytes);
  EXPECT_EQ(listener.peaks, 2);
  allocator->deallocate(large);
  const auto again = allocator->allocate(100, MemoryKind::kActivation);  // below the peak
  EXPECT_EQ(listener.peaks, 2);
  allocator->reset_peak();
  EXPECT_EQ(listener.resets, 1);
  EXPECT_THAT([&] { allocator->allocate(kTooMuch, MemoryKind::kActivation); },
              ThrowsMessage<RuntimeError>(HasSubstr("mine")));
  allocator->deallocate(small);
  allocator->deallocate(again);
  EXPECT_TRUE(listener.blocks.empty());
  EXPECT_EQ(listener.wrong, 0);

  Listener other;
  EXPECT_THROW(allocator->set_observer(&other), RuntimeError);
  allocator->set_observer(nullptr);
  const auto unseen = allocator->allocate(100, MemoryKind::kActivation);
  EXPECT_TRUE(listener.blocks.empty());
  allocator->deallocate(unseen);
}

}  // namespace
}  // namespace tapestry
