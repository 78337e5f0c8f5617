#include "autograd/ops/linalg.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/linalg/linalg_kernels.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// ------------------------------------------------------------------------------------- shapes

int64_t row_count(const Tensor& a) { return a.size(-2); }
int64_t column_count(const Tensor& a) { return a.size(-1); }

Shape batch_of(const Tensor& a) {
  return Shape(std::span<const int64_t>(a.shape().begin(), static_cast<size_t>(a.dim() - 2)));
}

// The batch's shape with further axes behind it.
Shape with(Shape batch, std::initializer_list<int64_t> sizes) {
  for (const int64_t size : sizes) {
    batch.push_back(size);
  }
  return batch;
}

void check_matrix(std::string_view op, const Tensor& a) {
  check_floating(op, a.dtype());
  check<ValueError>(a.dim() >= 2, op, ": needs a matrix or a batch of them, got ", describe(a));
}

void check_square(std::string_view op, const Tensor& a) {
  check_matrix(op, a);
  check<ValueError>(row_count(a) == column_count(a), op, ": needs square matrices, got ",
                    describe(a));
}

// 16-bit matrices are computed in float32, recorded, so that their gradients are, too.
DType work_dtype(DType dtype) { return dtype == kFloat16 || dtype == kBFloat16 ? kFloat32 : dtype; }

// The diagonal matrix of a vector, or of a batch of them.
Tensor diagonal_matrix(const Tensor& x) {
  return mul(eye(x.size(-1), -1, x.dtype()), unsqueeze(x, -1));
}

// ------------------------------------------------------------------------------------- kernels

// Dense matrices, as the kernels take them. The tensor must outlive the batch.
linalg::Batch batch(const Tensor& a) {
  return {a.dtype(), batch_of(a).numel(), row_count(a), column_count(a), a.raw()};
}

// "the matrix", or where it lies in its batch: "matrix [1, 0] of the batch [2, 3]".
std::string place(const Shape& batch, int64_t number) {
  if (batch.empty()) {
    return "the matrix";
  }
  Shape index = batch;
  for (int64_t i = batch.size() - 1; i >= 0; --i) {
    index[i] = number % batch[i];
    number /= batch[i];
  }
  return concat("matrix ", index, " of the batch ", batch);
}

// Throws what a kernel's result says.
void check_done(std::string_view op, const Tensor& a, int64_t failed, std::string_view reason) {
  check<RuntimeError>(failed != linalg::kNoMemory, op, ": no memory to work on ", describe(a));
  if (failed != linalg::kNone) [[unlikely]] {
    throw RuntimeError(concat(op, ": ", place(batch_of(a), failed), " ", reason));
  }
}

// RuntimeError unless neighbours in [.., k] differ: what is true of sorted values.
void check_distinct(std::string_view op, std::string_view what, const Tensor& sorted) {
  const std::vector<double> values = sorted.to_vector<double>();
  const int64_t k = sorted.size(-1);
  Shape batch_shape = sorted.shape();
  batch_shape.pop_back();
  for (int64_t i = 1; i < static_cast<int64_t>(values.size()); ++i) {
    check<RuntimeError>(
        i % k == 0 || values[static_cast<size_t>(i)] != values[static_cast<size_t>(i - 1)], op,
        ": ", place(batch_shape, i / std::max<int64_t>(k, 1)), " has ", what, " ",
        i % std::max<int64_t>(k, 1) - 1, " and ", i % std::max<int64_t>(k, 1),
        " equal, so its vectors have no derivative");
  }
}

// ------------------------------------------------------------------------------- factorisations

struct Cholesky {
  static constexpr OpName name = "cholesky";
  SavedTensor l;
  Tensor forward(const Tensor& x) {
    const Tensor a = dense(x);
    const Tensor y = empty_like(a);
    check_done(name, a, linalg::cholesky(batch(a), y.raw()), "is not positive definite");
    return l.save_output(y);
  }
  Tensor backward(const Tensor& dy) const {
    const Tensor lower = l;
    const Tensor p = tril(matmul(lower.t(), dy));
    const Tensor symmetric = mul(add(p, tril(p, -1).t()), 0.5);
    // L^-T S L^-1
    const Tensor left = solve_triangular(lower.t(), symmetric, /*upper=*/true);
    return solve_triangular(lower, left, /*upper=*/false, /*left=*/false);
  }
};

// Of A [.., m, n] with m >= n and its reduced factors.
Tensor tall_qr_gradient(const Tensor& q, const Tensor& r, const Tensor& dq, const Tensor& dr) {
  Tensor inner;
  if (dr.defined()) {
    inner = matmul(dr, r.t());
  }
  if (dq.defined()) {
    const Tensor part = matmul(q.t(), dq);
    inner = inner.defined() ? sub(inner, part) : neg(part);
  }
  inner = triu(inner);
  inner = add(inner, triu(inner, 1).t());
  Tensor outer = matmul(q, inner);
  if (dq.defined()) {
    outer = add(outer, dq);
  }
  return solve_triangular(r.t(), outer, /*upper=*/false, /*left=*/false);
}

struct Qr {
  static constexpr OpName name = "qr";
  bool complete;
  SavedTensor q = {}, r = {};
  std::array<Tensor, 2> forward(const Tensor& x) {
    const Tensor a = dense(x);
    const int64_t k = complete ? row_count(a) : std::min(row_count(a), column_count(a));
    const Tensor y = empty(with(batch_of(a), {row_count(a), k}), a.dtype());
    const Tensor z = empty(with(batch_of(a), {k, column_count(a)}), a.dtype());
    check_done(name, a, linalg::qr(batch(a), k, y.raw(), z.raw()), "");
    return {q.save_output(y, 0), r.save_output(z, 1)};
  }
  Tensor backward(const TensorList& dys, NeedsGrad /*needs*/) const {
    const Tensor basis = q;
    const Tensor triangle = r;
    const int64_t m = row_count(basis);
    const int64_t n = column_count(triangle);
    check<RuntimeError>(
        column_count(basis) <= n,
        "qr: the complete factors of more rows than columns have no derivative: A [", m, ", ", n,
        "]");
    if (m >= n) {
      return tall_qr_gradient(basis, triangle, dys[0], dys[1]);
    }
    // A = [X | Y] with X square: X = Q U and Y = Q V, so V = Q^T Y is a product like any other.
    Tensor dq = dys[0];
    if (!dys[1].defined()) {
      const Tensor dx = tall_qr_gradient(basis, slice(triangle, -1, 0, m), dq, {});
      return cat({dx, zeros(with(batch_of(basis), {m, n - m}), basis.dtype())}, -1);
    }
    const Tensor du = slice(dys[1], -1, 0, m);
    const Tensor dv = slice(dys[1], -1, m, n);
    const Tensor y = matmul(basis, slice(triangle, -1, m, n));
    const Tensor from_v = matmul(y, dv.t());
    dq = dq.defined() ? add(dq, from_v) : from_v;
    return cat({tall_qr_gradient(basis, slice(triangle, -1, 0, m), dq, du), matmul(basis, dv)}, -1);
  }
};

// X - X^T
Tensor skew(const Tensor& x) { return sub(x, x.t()); }

// values[j] - values[i], and 1 on the diagonal.
Tensor differences(const Tensor& values) {
  return add(sub(unsqueeze(values, -2), unsqueeze(values, -1)),
             eye(values.size(-1), -1, values.dtype()));
}

struct Svd {
  static constexpr OpName name = "svd";
  bool full_matrices;
  SavedTensor u = {}, s = {}, vh = {};
  std::array<Tensor, 3> forward(const Tensor& x) {
    const Tensor a = dense(x);
    const int64_t m = row_count(a);
    const int64_t n = column_count(a);
    const int64_t k = std::min(m, n);
    const Tensor left = empty(with(batch_of(a), {m, full_matrices ? m : k}), a.dtype());
    const Tensor values = empty(with(batch_of(a), {k}), a.dtype());
    const Tensor right = empty(with(batch_of(a), {full_matrices ? n : k, n}), a.dtype());
    check_done(name, a, linalg::svd(batch(a), full_matrices, left.raw(), values.raw(), right.raw()),
               "is not finite");
    return {u.save_output(left, 0), s.save_output(values, 1), vh.save_output(right, 2)};
  }

  // The first k columns or rows of a gradient; what lies behind must be 0.
  static Tensor first(const Tensor& gradient, int64_t axis, int64_t k) {
    if (!gradient.defined() || gradient.size(axis) == k) {
      return gradient;
    }
    const Tensor rest = slice(gradient.detach(), axis, k, gradient.size(axis));
    check<RuntimeError>(any(ne(rest, 0.0)).item() == 0,
                        "svd: a gradient arrived in singular vectors beyond the first ", k,
                        ", which are arbitrary and have no derivative; use full_matrices = false");
    return slice(gradient, axis, 0, k);
  }

  Tensor backward(const TensorList& dys, NeedsGrad /*needs*/) const {
    const Tensor all_u = u;
    const Tensor all_vh = vh;
    const Tensor values = s;
    const int64_t k = values.size(-1);
    const Tensor left = slice(all_u, -1, 0, k);
    const Tensor right = slice(all_vh, -2, 0, k);
    const Tensor du = first(dys[0], -1, k);
    const Tensor dvh = first(dys[2], -2, k);
    const Tensor columns = unsqueeze(values, -2);
    const Tensor rows = unsqueeze(values, -1);
    if (!du.defined() && !dvh.defined()) {
      return matmul(mul(left, unsqueeze(dys[1], -2)), right);
    }
    check_distinct(name, "singular values", values.detach());
    const bool tall = row_count(all_u) > k && du.defined();
    const bool wide = column_count(all_vh) > k && dvh.defined();
    check<RuntimeError>(!(tall || wide) || all(values.detach()).item() != 0,
                        "svd: a singular value of a matrix that is not square is 0, so its vectors "
                        "have no derivative");
    const Tensor gaps = differences(square(values));
    Tensor inner;
    const auto gather = [&inner](const Tensor& term) {
      inner = inner.defined() ? add(inner, term) : term;
    };
    if (du.defined()) {
      gather(mul(div(skew(matmul(left.t(), du)), gaps), columns));
    }
    if (dvh.defined()) {
      gather(mul(rows, div(skew(matmul(right, dvh.t())), gaps)));
    }
    if (dys[1].defined()) {
      gather(diagonal_matrix(dys[1]));
    }
    Tensor result = matmul(matmul(left, inner), right);
    if (tall) {  // (1 - U U^T) dU S^-1 Vh
      const Tensor scaled = div(du, columns);
      const Tensor outside = sub(scaled, matmul(left, matmul(left.t(), scaled)));
      result = add(result, matmul(outside, right));
    }
    if (wide) {  // U S^-1 dVh (1 - V V^T)
      const Tensor scaled = div(dvh, rows);
      const Tensor outside = sub(scaled, matmul(matmul(scaled, right.t()), right));
      result = add(result, matmul(left, outside));
    }
    return result;
  }
};

struct Eigh {
  static constexpr OpName name = "eigh";
  bool upper;
  SavedTensor w = {}, v = {};
  std::array<Tensor, 2> forward(const Tensor& x) {
    const Tensor a = dense(x);
    Shape shape = a.shape();
    shape.pop_back();
    const Tensor values = empty(shape, a.dtype());
    const Tensor vectors = empty_like(a);
    check_done(name, a, linalg::eigh(batch(a), upper, values.raw(), vectors.raw()),
               "is not finite");
    return {w.save_output(values, 0), v.save_output(vectors, 1)};
  }
  Tensor backward(const TensorList& dys, NeedsGrad /*needs*/) const {
    const Tensor values = w;
    const Tensor vectors = v;
    if (!dys[1].defined()) {
      return matmul(mul(vectors, unsqueeze(dys[0], -2)), vectors.t());
    }
    check_distinct(name, "eigenvalues", values.detach());
    Tensor inner = mul(div(skew(matmul(vectors.t(), dys[1])), differences(values)), 0.5);
    if (dys[0].defined()) {
      inner = add(inner, diagonal_matrix(dys[0]));
    }
    return matmul(matmul(vectors, inner), vectors.t());
  }
};

// --------------------------------------------------------------------------------------- systems

// a [.., n, n] and b [.., n, k] of one batch.
struct Solve {
  static constexpr OpName name = "solve";
  SavedTensor a = {}, x = {};
  Tensor forward(const Tensor& a_, const Tensor& b_) {
    a.save(a_);
    const Tensor matrices = dense(a_);
    const Tensor right = dense(b_);
    const Tensor y = empty_like(right);
    check_done(name, matrices,
               linalg::solve(batch(matrices), column_count(right), right.raw(), y.raw()),
               "is singular");
    return x.save_output(y);
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    const Tensor db = solve(a.get().t(), dy);
    return {needs[0] ? neg(matmul(db, x.get().t())) : Tensor(), needs[1] ? db : Tensor()};
  }
};

struct SolveTriangular {
  static constexpr OpName name = "solve_triangular";
  bool upper;
  bool unitriangular;
  SavedTensor a = {}, x = {};
  Tensor forward(const Tensor& a_, const Tensor& b_) {
    a.save(a_);
    const Tensor matrices = dense(a_);
    const Tensor right = dense(b_);
    const Tensor y = empty_like(right);
    check_done(name, matrices,
               linalg::solve_triangular(batch(matrices), upper, unitriangular, column_count(right),
                                        right.raw(), y.raw()),
               "is singular: its diagonal has a 0");
    return x.save_output(y);
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    const Tensor db = solve_triangular(a.get().t(), dy, !upper, /*left=*/true, unitriangular);
    Tensor da;
    if (needs[0]) {
      const Tensor full = neg(matmul(db, x.get().t()));
      const int64_t beside = unitriangular ? 1 : 0;
      da = upper ? triu(full, beside) : tril(full, -beside);
    }
    return {da, needs[1] ? db : Tensor()};
  }
};

struct Inverse {
  static constexpr OpName name = "inverse";
  SavedTensor y;
  Tensor forward(const Tensor& x) {
    const Tensor a = dense(x);
    const Tensor result = empty_like(a);
    check_done(name, a, linalg::inverse(batch(a), result.raw()), "is singular");
    return y.save_output(result);
  }
  Tensor backward(const Tensor& dy) const {
    const Tensor transposed = y.get().t();
    return neg(matmul(matmul(transposed, dy), transposed));
  }
};

// A number of each matrix times a matrix.
Tensor scale_matrices(const Tensor& numbers, const Tensor& matrices) {
  return mul(unsqueeze(unsqueeze(numbers, -1), -1), matrices);
}

struct Det {
  static constexpr OpName name = "det";
  SavedTensor a = {}, y = {};
  Tensor forward(const Tensor& x) {
    a.save(x);
    const Tensor matrices = dense(x);
    const Tensor result = empty(batch_of(x), x.dtype());
    check_done(name, matrices, linalg::det(batch(matrices), result.raw()), "");
    return y.save_output(result);
  }
  Tensor backward(const Tensor& dy) const {
    if (grad_enabled()) {
      return scale_matrices(mul(dy, y), inverse(a).t());
    }
    const Tensor matrices = dense(a);
    const Tensor cofactors = empty_like(matrices);
    check_done(name, matrices, linalg::cofactors(batch(matrices), cofactors.raw()),
               "is not finite");
    return scale_matrices(dy, cofactors);
  }
};

struct Slogdet {
  static constexpr OpName name = "slogdet";
  SavedTensor a;
  std::array<Tensor, 2> forward(const Tensor& x) {
    a.save(x);
    const Tensor matrices = dense(x);
    const Tensor sign = empty(batch_of(x), x.dtype());
    const Tensor logarithm = empty(batch_of(x), x.dtype());
    check_done(name, matrices, linalg::slogdet(batch(matrices), sign.raw(), logarithm.raw()), "");
    return {sign, logarithm};
  }
  Tensor backward(const TensorList& dys, NeedsGrad /*needs*/) const {
    if (!dys[1].defined()) {
      return zeros_like(a.get());
    }
    return scale_matrices(dys[1], inverse(a).t());
  }
};

// a and b with leading axes of one shape.
std::array<Tensor, 2> with_one_batch(std::string_view op, const Tensor& a, const Tensor& b) {
  const Shape shape = broadcast_shapes(op, batch_of(a), batch_of(b));
  return {expand(a, with(shape, {row_count(a), column_count(a)})),
          expand(b, with(shape, {row_count(b), column_count(b)}))};
}

void check_one_dtype(std::string_view op, const Tensor& a, const Tensor& b) {
  check<TypeError>(a.dtype() == b.dtype(), op, ": dtypes differ: a is ", name_of(a.dtype()),
                   ", b is ", name_of(b.dtype()));
}

// ----------------------------------------------------------------------------------------- norms

// x with the two axes of each matrix at the end.
Tensor matrices_last(const Tensor& x, const std::array<int64_t, 2>& axes) {
  check<ValueError>(x.dim() >= 2, "matrix_norm: needs a matrix or a batch of them, got ",
                    describe(x));
  check_floating("matrix_norm", x.dtype());
  const int64_t row = normalize_axis("matrix_norm", axes[0], x.dim());
  const int64_t col = normalize_axis("matrix_norm", axes[1], x.dim());
  check<ValueError>(row != col, "matrix_norm: axes ", axes[0], " and ", axes[1], " of ", x.shape(),
                    " are the same");
  Shape order;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (i != row && i != col) {
      order.push_back(i);
    }
  }
  order.push_back(row);
  order.push_back(col);
  return permute(x, order);
}

Tensor keep_axes(Tensor norm, const Tensor& x, const std::array<int64_t, 2>& axes, bool keepdim) {
  if (!keepdim) {
    return norm;
  }
  const int64_t row = normalize_axis("matrix_norm", axes[0], x.dim());
  const int64_t col = normalize_axis("matrix_norm", axes[1], x.dim());
  norm = unsqueeze(norm, std::min(row, col));
  return unsqueeze(norm, std::max(row, col));
}

// The root of a sum of squares; at 0 with gradient 0.
Tensor root_of_squares(const Tensor& a) {
  const Tensor squares = sum(square(a), {-2, -1});
  const Tensor none = eq(squares.detach(), 0.0);
  return masked_fill(sqrt(masked_fill(squares, none, 1)), none, 0);
}

}  // namespace

Tensor cholesky(const Tensor& a, bool upper) {
  check_defined("cholesky", a, "a");
  check_square("cholesky", a);
  const Tensor l = apply_op(Cholesky{}, a.to(work_dtype(a.dtype()))).to(a.dtype());
  return upper ? l.t() : l;
}

QrResult qr(const Tensor& a, bool complete) {
  check_defined("qr", a, "a");
  check_matrix("qr", a);
  const auto [q, r] = apply_op(Qr{complete}, a.to(work_dtype(a.dtype())));
  return {q.to(a.dtype()), r.to(a.dtype())};
}

SvdResult svd(const Tensor& a, bool full_matrices) {
  check_defined("svd", a, "a");
  check_matrix("svd", a);
  const auto [u, s, vh] = apply_op(Svd{full_matrices}, a.to(work_dtype(a.dtype())));
  return {u.to(a.dtype()), s.to(a.dtype()), vh.to(a.dtype())};
}

Tensor svdvals(const Tensor& a) {
  check_defined("svdvals", a, "a");
  check_matrix("svdvals", a);
  return svd(a, false).s;
}

EighResult eigh(const Tensor& a, bool upper) {
  check_defined("eigh", a, "a");
  check_square("eigh", a);
  const auto [w, v] = apply_op(Eigh{upper}, a.to(work_dtype(a.dtype())));
  return {w.to(a.dtype()), v.to(a.dtype())};
}

Tensor eigvalsh(const Tensor& a, bool upper) {
  check_defined("eigvalsh", a, "a");
  check_square("eigvalsh", a);
  return eigh(a, upper).eigenvalues;
}

Tensor solve(const Tensor& a, const Tensor& b) {
  check_defined("solve", a, "a", b, "b");
  check_square("solve", a);
  check_one_dtype("solve", a, b);
  Shape vectors = a.shape();
  vectors.pop_back();
  const bool is_vector = b.dim() == 1 || b.shape() == vectors;
  const Tensor columns = is_vector ? unsqueeze(b, -1) : b;
  check<ValueError>(columns.dim() >= 2 && row_count(columns) == row_count(a),
                    "solve: a and b do not fit: a ", a.shape(), ", b ", b.shape());
  const DType work = work_dtype(a.dtype());
  const auto [left, right] = with_one_batch("solve", a.to(work), columns.to(work));
  const Tensor x = apply_op(Solve{}, left, right).to(a.dtype());
  return is_vector ? squeeze(x, -1) : x;
}

Tensor solve_triangular(
    const Tensor& a, const Tensor& b, bool upper, bool left, bool unitriangular) {
  check_defined("solve_triangular", a, "a", b, "b");
  constexpr std::string_view op = "solve_triangular";
  check_square(op, a);
  check_one_dtype(op, a, b);
  check<ValueError>(b.dim() >= 2 && (left ? row_count(b) : column_count(b)) == row_count(a), op,
                    ": a and b do not fit: a ", a.shape(), ", b ", b.shape());
  if (!left) {  // X A = B is A^T X^T = B^T
    return solve_triangular(a.t(), b.t(), !upper, true, unitriangular).t();
  }
  const DType work = work_dtype(a.dtype());
  const auto [triangle, right] = with_one_batch(op, a.to(work), b.to(work));
  return apply_op(SolveTriangular{upper, unitriangular}, triangle, right).to(a.dtype());
}

Tensor inverse(const Tensor& a) {
  check_defined("inverse", a, "a");
  check_square("inverse", a);
  return apply_op(Inverse{}, a.to(work_dtype(a.dtype()))).to(a.dtype());
}

Tensor det(const Tensor& a) {
  check_defined("det", a, "a");
  check_square("det", a);
  return apply_op(Det{}, a.to(work_dtype(a.dtype()))).to(a.dtype());
}

SlogdetResult slogdet(const Tensor& a) {
  check_defined("slogdet", a, "a");
  check_square("slogdet", a);
  const auto [sign, logabsdet] = apply_op(Slogdet{}, a.to(work_dtype(a.dtype())));
  return {sign.detach().to(a.dtype()), logabsdet.to(a.dtype())};
}

Tensor matrix_norm(const Tensor& a,
                   std::string_view ord,
                   std::array<int64_t, 2> axes,
                   bool keepdim) {
  check_defined("matrix_norm", a, "a");
  check<ValueError>(ord == "fro" || ord == "nuc", "matrix_norm: unknown order '", ord,
                    "'; known are 'fro', 'nuc', 1, -1, 2, -2, infinity and -infinity");
  const Tensor x = matrices_last(a, axes);
  return keep_axes(ord == "fro" ? root_of_squares(x) : sum(svdvals(x), {-1}), a, axes, keepdim);
}

Tensor matrix_norm(const Tensor& a, double ord, std::array<int64_t, 2> axes, bool keepdim) {
  check_defined("matrix_norm", a, "a");
  const double size = std::abs(ord);
  check<ValueError>(size == 1 || size == 2 || std::isinf(size), "matrix_norm: unknown order ", ord,
                    "; known are 'fro', 'nuc', 1, -1, 2, -2, infinity and -infinity");
  const Tensor x = matrices_last(a, axes);
  const Tensor candidates = size == 2   ? svdvals(x)
                            : size == 1 ? sum(abs(x), {-2})
                                        : sum(abs(x), {-1});
  return keep_axes(ord > 0 ? amax(candidates, {-1}) : amin(candidates, {-1}), a, axes, keepdim);
}

}  // namespace tapestry
