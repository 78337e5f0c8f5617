#include "autograd/tensor/rank_context.h"

#include <new>

#include "autograd/kernels/scratch.h"

namespace tapestry {

namespace {

// In front of a kernel's working memory: where it goes back to.
struct alignas(kernels::kScratchAlignment) ScratchHeader {
  Ref<CachingAllocator> allocator;
  CachingAllocator::Block block;
};

void* scratch_from_cache(int64_t bytes) {
  CachingAllocator& allocator = RankContext::current().allocator();
  const CachingAllocator::Block block = allocator.allocate(
      bytes + static_cast<int64_t>(sizeof(ScratchHeader)), MemoryKind::kWorkspace);
  return new (block.data) ScratchHeader{Ref<CachingAllocator>(&allocator), block} + 1;
}

void scratch_to_cache(void* memory) {
  ScratchHeader* header = static_cast<ScratchHeader*>(memory) - 1;
  const Ref<CachingAllocator> allocator = header->allocator;
  const CachingAllocator::Block block = header->block;
  header->~ScratchHeader();
  allocator->deallocate(block);
}

// Before main: kernels are called through tensors, whose storage needs this file.
[[maybe_unused]] const bool kScratchIsCached = [] {
  kernels::scratch_source() = {&scratch_from_cache, &scratch_to_cache};
  return true;
}();

}  // namespace

thread_local constinit RankContext* RankContext::current_ = nullptr;

RankContext::RankContext(int rank, int world_size)
    : rank_(rank), world_size_(world_size), allocator_(make_ref<CachingAllocator>()) {}

RankContext::~RankContext() = default;

RankContext& RankContext::process_default() {
  // Never destroyed: tensors with static lifetime may outlive every other static object.
  static auto* const context = new RankContext();
  return *context;
}

MemoryStats memory_stats() { return RankContext::current().allocator().stats(); }

void manual_seed(uint64_t seed) { RankContext::current().default_generator().manual_seed(seed); }

}  // namespace tapestry
