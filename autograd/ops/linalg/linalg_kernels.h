// The algorithms of linalg.h on raw memory, by Eigen. Eigen's headers stay behind this file.
//
// Each function works on `count` matrices that lie end to end, row by row, in parallel and in
// double, and says which one has no result: its number, or kNone. kNoMemory if there was none for
// the work.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::linalg {

inline constexpr int64_t kNone = -1;
inline constexpr int64_t kNoMemory = -2;

/// Matrices a of dtype float32 or float64.
struct Batch {
  DType dtype;
  int64_t count;
  int64_t rows;
  int64_t cols;
  const void* data;
};

/// Fails where a is not positive definite.
int64_t cholesky(const Batch& a, void* l);
/// q [rows, k], r [k, cols]; k is rows, or the smaller of rows and cols.
int64_t qr(const Batch& a, int64_t k, void* q, void* r);
/// u [rows, rows] and vh [cols, cols] if full, else k columns and rows of them. Fails where a is
/// not finite.
int64_t svd(const Batch& a, bool full, void* u, void* s, void* vh);
/// Fails where a is not finite.
int64_t eigh(const Batch& a, bool upper, void* w, void* v);
/// x of a x = b, b [rows, columns]. Fails where a is singular.
int64_t solve(const Batch& a, int64_t columns, const void* b, void* x);
int64_t solve_triangular(
    const Batch& a, bool upper, bool unit, int64_t columns, const void* b, void* x);
int64_t inverse(const Batch& a, void* y);
int64_t det(const Batch& a, void* y);
int64_t slogdet(const Batch& a, void* sign, void* logabsdet);
/// Derivatives of the determinant, also of singular matrices. Fails where a is not finite.
int64_t cofactors(const Batch& a, void* y);

}  // namespace tapestry::linalg
