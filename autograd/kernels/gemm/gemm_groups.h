// Several products of different sizes at once; used by gemm_grouped.cpp only.
#pragma once

#include <span>
#include <vector>

#include "autograd/kernels/gemm/gemm_shape.h"

namespace tapestry::kernels {

/// One of them; the batch of the shape is not looked at.
struct GroupProduct {
  GemmShape shape;
  int64_t size;  ///< of the group: m or k of the shape
  const void* a;
  const void* b;
  void* c;
};

/// By gemm_tiled.h: products of one dtype that has_tiled_gemm, with m, n, k > 0, largest first.
/// Bits are those of tiled_gemm() for each. While a member of the team computes a panel of C, what
/// the next one is made of is on its way: a factor that few rows meet comes from memory no slower
/// than they can be multiplied.
void tiled_group_gemm(std::span<const GroupProduct> products);

}  // namespace tapestry::kernels
