#include "parallel_core/tensor_parallel/low_rank_parts.h"

#include <utility>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"

namespace tapestry {

LowRankParts low_rank_parts(const std::vector<LowRankModule>& modules) {
  std::vector<LowRankPart> out;
  int64_t column = 0;
  int64_t element = 0;
  for (const LowRankModule& module : modules) {
    for (size_t i = 0; i < module.outputs.size(); ++i) {
      const RowBlocks& rows = module.outputs[i].rows;
      out.push_back({rows, module.rank, column, element, module.scale, i == 0});
      element += rows.total() * module.rank;
    }
    column += module.rank;
  }
  return std::make_shared<std::vector<LowRankPart>>(std::move(out));
}

Tensor matrix_of(const Tensor& x) { return x.reshape({x.numel() / last_axis(x), last_axis(x)}); }

Tensor columns_of(const Tensor& y, const RowBlocks& rows) {
  if (rows.count == 1) {
    return y.slice(1, rows.first, rows.first + rows.rows);
  }
  return y.reshape({y.size(0), rows.count, rows.stride})
      .slice(2, rows.first, rows.first + rows.rows)
      .reshape({y.size(0), rows.total()});
}

Tensor with_low_rank(const std::vector<LowRankPart>& parts,
                     const Tensor& y,
                     const Tensor& t,
                     const Tensor& b) {
  const Tensor out = dense_copy(y);
  const Tensor low = dense(t);
  const Tensor bs = dense(b);
  const int64_t width = last_axis(y);
  const int64_t tokens = y.numel() / width;
  for (const LowRankPart& part : parts) {
    kernels::GemmShape shape{.dtype = y.dtype(),
                             .c_dtype = y.dtype(),
                             .trans_b = true,
                             .batch = part.rows.count,
                             .m = tokens,
                             .n = part.rows.rows,
                             .k = part.rank,
                             .alpha = part.scale,
                             .lda = last_axis(low),
                             .stride_a = 0,
                             .ldb = part.rank,
                             .stride_b = part.rows.rows * part.rank,
                             .beta = 1,
                             .ldc = width,
                             .stride_c = part.rows.stride};
    kernels::gemm(shape, element_of(low, part.column), element_of(bs, part.element),
                  element_of(out, part.rows.first));
  }
  return out;
}

}  // namespace tapestry
