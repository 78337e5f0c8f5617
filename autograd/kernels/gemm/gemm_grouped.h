// Matrix products of groups of rows, each group with a factor of its own: the experts of a mixture.
#pragma once

#include <cstdint>
#include <span>

#include "autograd/kernels/gemm/gemm_shape.h"

namespace tapestry::kernels {

/// Which axis of the product is divided among groups.
enum class GroupAxis {
  kRows,  ///< those of A and C: C[rows of e, n] = alpha A[rows of e, k] B_e[k, n] + beta C
  kSum,   ///< that of the sum: C_e[m, n] = alpha A[m, items of e] B[items of e, n] + beta C_e
};

/// The products of all groups, by what gemm() would take for each. `ends`, ascending, has where
/// each group ends on that axis; the last is the size of the whole axis, m or k of `shape`. B_e or
/// C_e are stride_b or stride_c elements apart; the other two strides and the batch are not looked
/// at. An empty group has no rows of C, or gets beta C_e. For the rest see gemm().
///
/// The work of all groups is shared by the team, however different their sizes. For the same shape,
/// ends, CPU level and team size the same bits come out.
void grouped_gemm(const GemmShape& shape,
                  GroupAxis axis,
                  std::span<const int64_t> ends,
                  const void* a,
                  const void* b,
                  void* c);

}  // namespace tapestry::kernels
