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
  check<TypeError>(a.dtype() == b.dtype() && is_floating(a.dtype()) && a.dtype() != kFloat64,
                   "exact mode: products of ", describe(a), " and ", describe(b),
                   " are not summed as trees");
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

std::vector<kernels::SumRun> token_runs(int64_t rows, bool apart) {
  std::vector<kernels::SumRun> out;
  const ExactTokens& tokens = exact_tokens();
  if (apart || tokens.samples == 0 || tokens.rows() != rows) {
    for (int64_t row = 0; row < rows; ++row) {
      out.push_back({.begin = row, .end = row + 1});
    }
    return out;
  }
  const int64_t step = tokens.samples_first ? 1 : tokens.samples;
  const int64_t next_sample = tokens.samples_first ? tokens.length : 1;
  const auto add = [&](int64_t sample, int64_t first, int64_t count, bool ends_leaf) {
    const int64_t begin = sample * next_sample + first * step;
    out.push_back({.begin = begin,
                   .end = begin + (count - 1) * step + 1,
                   .ends_leaf = ends_leaf,
                   .step = step});
  };
  // A run of odd length ends in a pair with a zero: chunks are runs also where they are neighbours.
  const int64_t chunks = 2 * tokens.leaves;
  const bool has_chunks = tokens.length % chunks == 0;
  check<ValueError>(has_chunks || tokens.leaves == 1, "exact mode: ", tokens.length,
                    " tokens have no ", chunks, " equal chunks");
  const int64_t chunk = tokens.length / chunks;
  for (int64_t sample = 0; sample < tokens.samples; ++sample) {
    if (!has_chunks) {
      add(sample, 0, tokens.length, true);
      continue;
    }
    for (int64_t leaf = 0; leaf < tokens.leaves; ++leaf) {
      add(sample, leaf * chunk, chunk, false);
      add(sample, (chunks - 1 - leaf) * chunk, chunk, true);
    }
  }
  return out;
}

void exact_token_gemm(
    kernels::GemmShape shape, const void* a, const void* b, double* sums, bool apart) {
  shape.trans_a = true;
  shape.trans_b = false;
  kernels::exact_sum_gemm(shape, token_runs(shape.k, apart), a, b, sums);
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
