// Linear algebra: factorisations, systems, determinants, norms of matrices.
//
// A matrix is the last two axes of a tensor; axes before them are a batch, whose matrices are
// worked on in parallel. float32 and float64; float16 and bfloat16 are computed in float32 and
// rounded once. TypeError for other dtypes, ValueError for fewer than two axes or a matrix that is
// not square where it must be. RuntimeError, naming the matrix of the batch, where a matrix has no
// such result (singular, not positive definite, not finite where the algorithm iterates). Computed
// in double whatever the dtype, each matrix by one thread.
//
// Sizes of 0 are allowed. Gradients are those of PyTorch; second derivatives exist wherever first
// ones do. A^T is the transpose, and Phi(X) the lower triangle with half the diagonal.
#pragma once

#include <array>
#include <string_view>

#include "autograd/tensor/tensor.h"

namespace tapestry {

// -- factorisations -----------------------------------------------------------------------------
/// The lower triangle L (upper: L^T) with L L^T = A, of a symmetric positive definite A, of which
/// only the lower triangle is read. RuntimeError if A is not positive definite.
/// dA = L^-T (P + P^T)/2 L^-1 with P = Phi(L^T dL), symmetric. Saves L.
/// Source: Murray 2016, arXiv:1602.07527.
Tensor cholesky(const Tensor& a, bool upper = false);

struct QrResult {
  Tensor q;
  Tensor r;
};
/// A = Q R by Householder's reflections, which leave R's diagonal the signs that LAPACK gives it.
/// A [.., m, n]; Q [.., m, k], R [.., k, n] with k = min(m, n); complete: k = m for both.
/// Backward: RuntimeError for complete with m > n, whose further columns of Q are arbitrary, and
/// where the first k columns of A are dependent. Saves Q and R.
/// Source: Walter and Lehmann 2012, arXiv:1009.6112; Roberts and Roberts 2020, arXiv:2009.10071.
QrResult qr(const Tensor& a, bool complete = false);

struct SvdResult {
  Tensor u;
  Tensor s;
  Tensor vh;
};
/// A = U diag(S) Vh, with S descending. A [.., m, n], k = min(m, n); U [.., m, m], S [.., k],
/// Vh [.., n, n]; without full_matrices U [.., m, k] and Vh [.., k, n].
/// U and Vh are only determined up to a sign for each singular value, so their gradients mean
/// something for functions that do not depend on it. RuntimeError in backward if the gradient of U
/// or Vh is needed where singular values are equal (or 0 and m != n), or if it arrives in columns
/// beyond the first k. Saves U, S, Vh. Source: Townsend 2016, "Differentiating the singular value
/// decomposition".
SvdResult svd(const Tensor& a, bool full_matrices = true);
/// S alone; differentiable also where singular values are equal.
Tensor svdvals(const Tensor& a);

struct EighResult {
  Tensor eigenvalues;   ///< [.., n], ascending
  Tensor eigenvectors;  ///< [.., n, n], columns of length 1
};
/// A = V diag(w) V^T of a symmetric A, of which only the lower (upper: the upper) triangle is read.
/// The gradient is symmetric: that of A as a symmetric matrix. RuntimeError in backward if that of
/// V is needed where eigenvalues are equal. Saves w and V.
/// Source: Giles 2008, "Collected matrix derivative results", section 3.1.
EighResult eigh(const Tensor& a, bool upper = false);
/// w alone; differentiable also where eigenvalues are equal.
Tensor eigvalsh(const Tensor& a, bool upper = false);

// -- systems --------------------------------------------------------------------------------------
/// X with A X = B: A [.., n, n], B [.., n, k], or [.., n] for one vector per matrix (where B has
/// one axis, or the shape of A without its last). Batches broadcast. By LU with partial pivoting;
/// RuntimeError if A is singular, ValueError if shapes do not fit.
/// dB = A^-T dX, dA = -dB X^T. Saves A and X. Source: Giles 2008, section 2.3.1.
Tensor solve(const Tensor& a, const Tensor& b);
/// The same for a triangular A, of which only that triangle is read (unitriangular: and its
/// diagonal taken as ones); B has at least two axes. left = false: X A = B.
Tensor solve_triangular(
    const Tensor& a, const Tensor& b, bool upper, bool left = true, bool unitriangular = false);
/// Y = A^-1. RuntimeError if A is singular. dA = -Y^T dY Y^T. Saves Y.
Tensor inverse(const Tensor& a);

// -- numbers of a matrix ------------------------------------------------------------------------
/// The determinant. Its derivative is the matrix of cofactors, det(A) A^-T, also where A is
/// singular; there only the first one exists (RuntimeError for further ones). Saves A and the
/// result.
Tensor det(const Tensor& a);

struct SlogdetResult {
  Tensor sign;       ///< -1, 0 or 1; no gradient
  Tensor logabsdet;  ///< log |det|; -infinity for a singular matrix
};
/// The determinant where it would overflow. RuntimeError in backward if A is singular. Saves A.
SlogdetResult slogdet(const Tensor& a);

/// "fro": root of the sum of squares (gradient 0 for a matrix of zeros); "nuc": sum of the singular
/// values. ValueError for another name, and if the two axes are equal.
Tensor matrix_norm(const Tensor& a,
                   std::string_view ord = "fro",
                   std::array<int64_t, 2> axes = {-2, -1},
                   bool keepdim = false);
/// 1, -1: largest, smallest sum of magnitudes of a column; infinity, -infinity: of a row; 2, -2:
/// largest, smallest singular value. Equals share the gradient. ValueError for another order.
Tensor matrix_norm(const Tensor& a,
                   double ord,
                   std::array<int64_t, 2> axes = {-2, -1},
                   bool keepdim = false);

}  // namespace tapestry
