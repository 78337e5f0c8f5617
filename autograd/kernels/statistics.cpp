#include "autograd/kernels/statistics.h"

#include <algorithm>

#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void add_statistics(
    DType dtype, int64_t n, const void* x, uint32_t groups, ElementStatistics* into))

namespace {

constexpr int64_t kStatisticsBlock = 32768;  // elements of one partial result

void merge(const ElementStatistics& from, ElementStatistics& into) {
  into.max = std::max(into.max, from.max);
  into.min = std::min(into.min, from.min);
  into.sum += from.sum;
  into.sum_squares += from.sum_squares;
  into.negative += from.negative;
  into.positive += from.positive;
  into.zero += from.zero;
  into.nan += from.nan;
  into.negative_infinity += from.negative_infinity;
  into.positive_infinity += from.positive_infinity;
  into.bits = std::max(into.bits, from.bits);
}

}  // namespace

ElementStatistics element_statistics(DType dtype, int64_t n, const void* x, uint32_t groups) {
  const auto add = TAPESTRY_DISPATCH(add_statistics);
  ElementStatistics all;
  const int64_t blocks = ceil_div(n, kStatisticsBlock);
  if (blocks == 0) {
    return all;
  }
  const Scratch memory(blocks * static_cast<int64_t>(sizeof(ElementStatistics)));
  auto* partials = static_cast<ElementStatistics*>(memory.get());
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kStatisticsBlock;
      partials[block] = {};
      add(dtype, std::min(kStatisticsBlock, n - first),
          static_cast<const char*>(x) + first * size_of(dtype), groups, partials + block);
    }
  });
  for (int64_t block = 0; block < blocks; ++block) {
    merge(partials[block], all);
  }
  return all;
}

}  // namespace tapestry::kernels
