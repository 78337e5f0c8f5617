// The parts of an addition of low rank (low_rank.h): what each B is multiplied with, and where it
// goes. Used by low_rank*.cpp only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "autograd/tensor/dtype.h"
#include "parallel_core/tensor_parallel/low_rank.h"

namespace tapestry {

/// One B: its rows in the layer, its columns of x A^T and its place among all Bs.
struct LowRankPart {
  RowBlocks rows;
  int64_t rank = 0;
  int64_t column = 0;
  int64_t element = 0;
  double scale = 1;
  bool is_first = true;  ///< of its columns
};
using LowRankParts = std::shared_ptr<const std::vector<LowRankPart>>;

LowRankParts low_rank_parts(const std::vector<LowRankModule>& modules);

inline int64_t last_axis(const Tensor& x) { return x.shape().back(); }

/// [.., n] as [N, n].
Tensor matrix_of(const Tensor& x);

/// The columns of y [N, out] that a part adds to: [N, rows].
Tensor columns_of(const Tensor& y, const RowBlocks& rows);

template <class T>
void* element_of(const T& tensor, int64_t index) {
  return static_cast<std::byte*>(tensor.raw()) + index * size_of(tensor.dtype());
}

/// y + s t B^T on the rows of each part; all of one dtype.
Tensor with_low_rank(const std::vector<LowRankPart>& parts,
                     const Tensor& y,
                     const Tensor& t,
                     const Tensor& b);

/// add_low_rank() in exact mode, from the rank's piece of t, or all of it, of which dt is the sum
/// over the ranks that divide the rows. `tokens_apart`: those of db are.
Tensor exact_add_low_rank(const Tensor& y,
                          const Tensor& t,
                          const Tensor& b,
                          const Tensor& rounded,
                          const std::vector<LowRankModule>& modules,
                          const TensorParallelLayout& layout,
                          bool tokens_apart);

}  // namespace tapestry
