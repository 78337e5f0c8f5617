// Stands in for autograd/ops/cached_attention.cpp until that is there.
#include <algorithm>

#include "autograd/ops/attention.h"
#include "autograd/ops/cached_attention.h"
#include "autograd/ops/shape_ops.h"

namespace tapestry {

Tensor cached_attention(const Tensor& q,
                        const Tensor& cache_k,
                        const Tensor& cache_v,
                        const std::vector<int64_t>& positions,
                        const CachedAttentionOptions& options) {
  TensorList rows;
  const int64_t capacity = cache_k.size(2);
  for (int64_t b = 0; b < q.size(0); ++b) {
    const int64_t first = positions[static_cast<size_t>(b)];
    const int64_t end = first + q.size(2);
    const int64_t begin =
        options.ring ? std::max<int64_t>(0, first - options.window_left.value()) : 0;
    const auto keys = [&](const Tensor& cache) {
      const Tensor row = cache.slice(0, b, b + 1);
      if (!options.ring || begin / capacity == (end - 1) / capacity) {
        const int64_t at = options.ring ? begin % capacity : begin;
        return row.slice(2, at, at + end - begin);
      }
      return cat({row.slice(2, begin % capacity, capacity), row.slice(2, 0, end % capacity)}, 2);
    };
    rows.push_back(scaled_dot_product_attention(q.slice(0, b, b + 1), keys(cache_k), keys(cache_v),
                                                {.causal = true,
                                                 .window_left = options.window_left,
                                                 .scale = options.scale,
                                                 .alibi_slopes = options.alibi_slopes,
                                                 .q_offset = first - begin}));
  }
  return rows.size() == 1 ? rows[0] : cat(rows, 0);
}

}  // namespace tapestry
