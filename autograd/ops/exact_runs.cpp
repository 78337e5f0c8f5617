#include "autograd/ops/exact_runs.h"

#include <algorithm>

#include "autograd/ops/blas_matrix.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"

namespace tapestry {

std::vector<kernels::SumRun> tree_runs(int64_t k, int64_t leaves) {
  return tree_runs_of_pieces(k, 1, leaves);
}

std::vector<kernels::SumRun> tree_runs_of_pieces(int64_t k, int64_t pieces, int64_t leaves) {
  check<ValueError>(k % pieces == 0, "exact mode: an axis of ", k, " has no ", pieces,
                    " equal pieces");
  const int64_t size = k / pieces;
  std::vector<kernels::SumRun> out;
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    for (int64_t piece = 0; piece < pieces; ++piece) {
      out.push_back({.begin = piece * size + leaf * size / leaves,
                     .end = piece * size + (leaf + 1) * size / leaves,
                     .ends_leaf = piece + 1 == pieces});
    }
  }
  return out;
}

bool sums_by_runs(std::span<const kernels::SumRun> runs, DType dtype) {
  return in_exact() && !runs.empty() && is_floating(dtype) && dtype != kFloat64;
}

void tree_product(const Tensor& a,
                  const Tensor& b,
                  std::span<const kernels::SumRun> runs,
                  const Tensor& y,
                  double beta) {
  const int64_t k = b.size(0);
  check<ValueError>(!runs.empty() && runs.back().end == k, "exact mode: the sum of ", describe(b),
                    " is cut for an axis of ", runs.empty() ? 0 : runs.back().end);
  if (y.numel() == 0) {
    return;
  }
  const Tensor rows = blas_layout(a.reshape({a.numel() / std::max<int64_t>(1, k), k}));
  const Tensor columns = blas_layout(b);
  const BlasMatrix left = as_blas_matrix(rows, {});
  const BlasMatrix right = as_blas_matrix(columns, {});
  kernels::tree_gemm({.dtype = a.dtype(),
                      .c_dtype = y.dtype(),
                      .trans_a = left.transposed,
                      .trans_b = right.transposed,
                      .m = left.rows,
                      .n = right.columns,
                      .k = k,
                      .lda = left.leading,
                      .ldb = right.leading,
                      .beta = beta,
                      .ldc = right.columns},
                     runs, left.data, right.data, y.raw());
}

TokenRuns token_runs(int64_t rows, bool apart) {
  TokenRuns out;
  const ExactTokens& tokens = exact_tokens();
  if (apart || tokens.samples == 0 || tokens.rows() != rows) {
    for (int64_t row = 0; row < rows; ++row) {
      out.runs.push_back({.begin = row, .end = row + 1});
    }
    return out;
  }
  // Chunks of an odd leaf end in a pair with a zero: they are two runs also where they are
  // neighbours.
  const int64_t chunks = 2 * tokens.leaves;
  const bool has_chunks = tokens.length % chunks == 0;
  check<ValueError>(has_chunks || tokens.leaves == 1, "exact mode: ", tokens.length,
                    " tokens have no ", chunks, " equal chunks");
  const int64_t chunk = tokens.length / chunks;
  const auto add_sample = [&](int64_t first) {
    if (!has_chunks) {
      out.runs.push_back({.begin = first, .end = first + tokens.length});
      return;
    }
    for (int64_t leaf = 0; leaf < tokens.leaves; ++leaf) {
      const int64_t early = first + leaf * chunk;
      const int64_t late = first + (chunks - 1 - leaf) * chunk;
      out.runs.push_back({.begin = early, .end = early + chunk, .ends_leaf = false});
      out.runs.push_back({.begin = late, .end = late + chunk});
    }
  };
  if (!tokens.samples_first) {
    out.strides = tokens.samples;
    add_sample(0);
    return out;
  }
  for (int64_t sample = 0; sample < tokens.samples; ++sample) {
    add_sample(sample * tokens.length);
  }
  return out;
}

void exact_token_gemm(
    kernels::GemmShape shape, const void* a, const void* b, double* sums, bool apart) {
  const TokenRuns tokens = token_runs(shape.k, apart);
  const int64_t row_a = shape.lda * size_of(shape.dtype);
  const int64_t row_b = shape.ldb * size_of(shape.dtype);
  shape.trans_a = true;
  shape.trans_b = false;
  shape.k /= tokens.strides;
  shape.lda *= tokens.strides;
  shape.ldb *= tokens.strides;
  for (int64_t i = 0; i < tokens.strides; ++i) {
    kernels::exact_sum_gemm(shape, tokens.runs, static_cast<const std::byte*>(a) + i * row_a,
                            static_cast<const std::byte*>(b) + i * row_b, sums);
  }
}

void add_exact_products(const Tensor& dy, const Tensor& x, const Tensor& sums, bool apart) {
  check<ValueError>(dy.dim() == 2 && x.dim() == 2 && dy.size(0) == x.size(0) &&
                        sums.shape() == Shape{dy.size(1), x.size(1)},
                    "exact sums ", describe(sums), " are not those of ", describe(dy), " and ",
                    describe(x));
  if (dy.numel() == 0 || x.numel() == 0) {
    return;
  }
  const auto with_rows = [](const Tensor& t) {
    return t.strides()[1] == 1 && t.strides()[0] >= t.size(1) ? t : dense(t);
  };
  const Tensor a = with_rows(dy);
  const Tensor b = with_rows(x);
  exact_token_gemm({.dtype = a.dtype(),
                    .m = a.size(1),
                    .n = b.size(1),
                    .k = a.size(0),
                    .lda = a.strides()[0],
                    .ldb = b.strides()[0],
                    .ldc = b.size(1)},
                   a.raw(), b.raw(), sums.data<double>(), apart);
}

}  // namespace tapestry
