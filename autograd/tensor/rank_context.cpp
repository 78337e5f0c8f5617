#include "autograd/tensor/rank_context.h"

#include <new>
#include <utility>

#include "autograd/kernels/machine/scratch.h"

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

RankContext::RankContext(int rank, int world_size)
    : rank_(rank), world_size_(world_size), allocator_(make_ref<CachingAllocator>()) {}

RankContext::~RankContext() = default;

RankContext& RankContext::process_default() {
  // Never destroyed: tensors with static lifetime may outlive every other static object.
  static auto* const context = new RankContext();
  return *context;
}

void* RankContext::slot(std::type_index type, std::shared_ptr<void> (*make)()) {
  {
    const std::lock_guard lock(slots_mutex_);
    if (const auto found = slots_.find(type); found != slots_.end()) {
      return found->second.get();
    }
  }
  // Outside the lock: what is made may ask for other slots. Of two threads, the first one's stays.
  std::shared_ptr<void> made = make();
  const std::lock_guard lock(slots_mutex_);
  return slots_.emplace(type, std::move(made)).first->second.get();
}

MemoryStats memory_stats() { return RankContext::current().allocator().stats(); }

void set_memory_limit(int64_t bytes) { RankContext::current().allocator().set_limit(bytes); }

void manual_seed(uint64_t seed) { RankContext::current().default_generator().manual_seed(seed); }

}  // namespace tapestry
