// How a team shares products of different sizes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

/// Calls multiply(i) once for each of `count` products: large ones are each computed by the whole
/// team, the others are taken by its members. work(i), in any unit, does not ascend.
template <class Work, class Multiply>
void for_products_by_size(int64_t count, const Work& work, const Multiply& multiply) {
  constexpr double kUnitsPerThread = 4;
  const int team = num_threads();
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    total += work(i);
  }
  int64_t large = 0;
  while (team > 1 && large < count && work(large) * kUnitsPerThread * team > total) {
    multiply(large++);
  }
  std::atomic<int64_t> taken = large;
  parallel_for(std::min<int64_t>(team, count - large), 1, [&](int64_t, int64_t) {
    for (int64_t i = taken++; i < count; i = taken++) {
      multiply(i);
    }
  });
}

}  // namespace tapestry::kernels
