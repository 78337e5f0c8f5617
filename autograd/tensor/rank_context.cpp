#include "autograd/tensor/rank_context.h"

namespace tapestry {

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
