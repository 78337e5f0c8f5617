// Loops over the elements of many arrays at once, as one team.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

/// Vector code and the scalar code of its remainder may round differently, so parts begin at
/// multiples of this many elements, whatever the team.
inline constexpr int64_t kStateBlock = 512;

inline int64_t state_blocks(int64_t n) { return (n + kStateBlock - 1) / kStateBlock; }

/// Calls body(begin, end) on ranges of elements in [0, n).
template <class Body>
void for_elements(int64_t n, const Body& body) {
  parallel_for(state_blocks(n), kGrainSize / kStateBlock, [&](int64_t begin, int64_t end) {
    body(begin * kStateBlock, std::min(end * kStateBlock, n));
  });
}

/// Calls body(index, begin, end) on ranges of the elements of all tensors (of tensors[index].n),
/// shared out evenly.
template <class T, class Body>
void for_all_elements(std::span<const T> tensors, const Body& body) {
  std::vector<int64_t> ends(tensors.size());  // in blocks, of all tensors up to this one
  int64_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    total += state_blocks(tensors[i].n);
    ends[i] = total;
  }
  parallel_for(total, kGrainSize / kStateBlock, [&](int64_t begin, int64_t end) {
    auto i = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
    for (; begin < end; ++i) {
      const int64_t first = ends[i] - state_blocks(tensors[i].n);
      const int64_t last = std::min(end, ends[i]);
      body(i, (begin - first) * kStateBlock, std::min((last - first) * kStateBlock, tensors[i].n));
      begin = last;
    }
  });
}

}  // namespace tapestry::kernels
