#include "autograd/kernels/attention/cached_attention.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <vector>

#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/machine/work_counter.h"

namespace tapestry::kernels {

namespace {

/// The blocks of keys that a row's queries see.
struct SeenBlocks {
  int64_t first = 0;  // a multiple of kCachedKeys
  int64_t count = 0;
};

SeenBlocks seen_blocks(const CachedAttention& call, int64_t sample) {
  const int64_t count = call.counts[sample];
  if (count == 0) {
    return {};
  }
  const int64_t position = call.positions[sample];
  const int64_t begin =
      call.window_left < 0 ? 0 : std::max<int64_t>(0, position - call.window_left);
  const int64_t first = begin / kCachedKeys * kCachedKeys;
  return {first, ceil_div(position + count - first, kCachedKeys)};
}

double cached_flops(const CachedAttention& call) {
  double pairs = 0;
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t i = 0; i < call.counts[b]; ++i) {
      const int64_t seen = call.positions[b] + i + 1;
      pairs += static_cast<double>(
          call.window_left < 0 ? seen : std::min<int64_t>(seen, call.window_left + 1));
    }
  }
  return 2.0 * static_cast<double>(call.heads * (call.head_dim + call.value_dim)) * pairs;
}

}  // namespace

void cached_attention(const CachedAttention& call) {
  assert(call.dtype == kFloat32 || call.dtype == kBFloat16);
  const CountedWork work(cached_flops(call));
  const int64_t of_group = call.heads / call.groups;
  const int64_t partial = cached_partial_floats(call.value_dim);
  const int64_t unit_floats = of_group * call.q_len * partial;
  std::vector<SeenBlocks> seen;
  std::vector<int64_t> first_unit = {0};
  for (int64_t b = 0; b < call.batch; ++b) {
    seen.push_back(seen_blocks(call, b));
    first_unit.push_back(first_unit.back() + seen.back().count * call.groups);
  }
  const int64_t units = first_unit.back();
  const Scratch partials(std::max<int64_t>(1, units * unit_floats * size_of(kFloat32)));
  auto* const sums = static_cast<float*>(partials.get());

  // A unit that is not worth a thread of its own: some microseconds.
  const int64_t unit_work =
      of_group * call.q_len * (call.head_dim + call.value_dim) / 2 * kCachedKeys;
  const int64_t grain = std::max<int64_t>(1, 2 * kGrainSize / unit_work);
  std::atomic<int64_t> taken = 0;
  parallel_for(std::min<int64_t>(ceil_div(units, grain), num_threads()), 1, [&](int64_t, int64_t) {
    const Scratch scratch(TAPESTRY_DISPATCH(cached_attention_scratch)(call) * size_of(kFloat32));
    for (int64_t unit = taken++; unit < units; unit = taken++) {
      const auto after = std::upper_bound(first_unit.begin(), first_unit.end(), unit);
      const int64_t sample = std::distance(first_unit.begin(), after) - 1;
      const SeenBlocks& blocks = seen[sample];
      const int64_t own = unit - first_unit[sample];
      TAPESTRY_DISPATCH(cached_attention_block)
      (call, {sample, own / blocks.count, blocks.first + own % blocks.count * kCachedKeys},
       sums + unit * unit_floats, static_cast<float*>(scratch.get()));
    }
  });

  const int64_t rows = call.batch * call.heads;
  const int64_t row_grain =
      std::max<int64_t>(1, kGrainSize / std::max<int64_t>(1, call.q_len * call.value_dim * 4));
  parallel_for(rows, row_grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t sample = row / call.heads;
      const int64_t head = row % call.heads;
      const SeenBlocks& blocks = seen[sample];
      const float* group =
          sums + (first_unit[sample] + head / of_group * blocks.count) * unit_floats;
      for (int64_t i = 0; i < call.q_len; ++i) {
        if (i < call.counts[sample]) {
          TAPESTRY_DISPATCH(cached_attention_merge)
          (call, sample, head, i, blocks.count,
           group + (head % of_group * call.q_len + i) * partial, unit_floats);
        } else {
          const AttentionStrides& s = call.out.strides;
          std::memset(static_cast<char*>(call.out.data) +
                          (sample * s.batch + head * s.head + i * s.row) * size_of(call.dtype),
                      0, static_cast<size_t>(call.value_dim * size_of(call.dtype)));
        }
      }
    }
  });
}

}  // namespace tapestry::kernels
