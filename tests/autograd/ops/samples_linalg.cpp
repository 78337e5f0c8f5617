#include <cmath>
#include <limits>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/linalg.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// diag(1, 2, 3, ..)
Tensor diagonal(const Tensor& x) {
  return mul(eye(x.size(-2), x.size(-1), x.dtype()), arange(1, x.size(-1) + 1.0, 1, x.dtype()));
}
// Small noise around it: singular values and eigenvalues stay apart. The suite repeats the first
// entry of an input's first axis, so that must not be the rows of a matrix: inputs have a batch.
Tensor well(const Tensor& noise) { return diagonal(noise) + 0.1 * noise; }
// Around diag(1, 2, 3, ..) / 2; the functions take x + x^T, which is symmetric and positive
// definite.
Tensor half_of(const Tensor& noise) { return 0.5 * diagonal(noise) + 0.05 * noise; }
Tensor symmetric(const Tensor& x) { return x + x.t(); }

// A weight [.., 1, k] per value in [.., k], for the columns that belong to them. Rounded once: 16
// bits do not count that far.
Tensor weights_of_columns(const Tensor& values) {
  const Tensor weights = sin(arange(0.0, static_cast<double>(values.numel()), 1, kFloat64));
  return unsqueeze(weights.reshape(values.shape()).to(values.dtype()), -2);
}

}  // namespace

OP_SAMPLES(cholesky) {
  rounds(3, 6);  // the sum and the factor
  const auto fn = [](const Tensor& x) { return cholesky(symmetric(x)); };
  for (const Shape& s :
       {Shape{1, 1, 1}, Shape{1, 3, 3}, Shape{2, 1, 3, 3}, Shape{1, 0, 0}, Shape{0, 2, 2}}) {
    add(fn, {half_of(randn(s))});
  }
  add([](const Tensor& x) { return cholesky(symmetric(x), /*upper=*/true); },
      {half_of(randn({2, 3, 3}))});
  add_large(fn, {half_of(0.2 * randn({40, 30, 30}))});
  const auto plain = [](const Tensor& x) { return cholesky(x); };
  add_error<RuntimeError>(plain, {full({2, 2}, 1, kFloat64)},
                          "the matrix is not positive definite");
  add_error<RuntimeError>(
      [](const Tensor& x) {
        return cholesky(stack({diagonal(x) + x, x}, 0));
      },
      {zeros({3, 2, 2}, kFloat64)}, "matrix [1, 0] of the batch [2, 3] is not positive definite");
  add_error<ValueError>(plain, {randn({2, 3})}, "square matrices, got float64 [2, 3]");
  add_error<ValueError>(plain, {randn({3})}, "cholesky: needs a matrix");
  add_error<TypeError>(plain, {integers({2, 2}, 3)}, "cholesky: needs a floating dtype");
}

OP_SAMPLES(qr) {
  const auto reduced = [](const Tensor& x) {
    const auto [q, r] = qr(x);
    return TensorList{q, r};
  };
  for (const Shape& s : {Shape{1, 3, 3}, Shape{1, 4, 2}, Shape{1, 2, 4}, Shape{2, 3, 2},
                         Shape{2, 2, 3}, Shape{1, 1, 1}, Shape{0, 3, 2}}) {
    add(reduced, {well(randn(s))});
  }
  const auto complete = [](const Tensor& x) {
    const auto [q, r] = qr(x, /*complete=*/true);
    return TensorList{q, r};
  };
  add(complete, {well(randn({1, 3, 3}))});
  add(complete, {well(randn({1, 2, 4}))});
  add(complete, {well(randn({1, 4, 2}))}).differentiable({});
  add([](const Tensor& x) { return qr(x, true).q; }, {well(randn({1, 3, 0}))}).differentiable({});
  add([](const Tensor& x) { return qr(x).q; }, {well(randn({1, 3, 2}))});
  add([](const Tensor& x) { return qr(x).r; }, {well(randn({1, 3, 2}))});
  add([](const Tensor& x) { return qr(x).q; }, {well(randn({1, 2, 3}))});
  add([](const Tensor& x) { return qr(x).r; }, {well(randn({1, 2, 3}))});
  add_large(reduced, {well(0.2 * randn({40, 40, 25}))});
  const auto backward_of = [](bool whole) {
    return [whole](const Tensor& x) {
      const Tensor leaf = x.detach().set_requires_grad();
      sum(qr(leaf, whole).q).backward();
      return leaf.grad();
    };
  };
  add_error<RuntimeError>(backward_of(true), {randn({3, 2})}, "complete factors of more rows");
  add_error<RuntimeError>(backward_of(false), {zeros({2, 2}, kFloat64)}, "is singular");
  add_error<ValueError>([](const Tensor& x) { return qr(x).q; }, {randn({3})},
                        "qr: needs a matrix");
}

OP_SAMPLES(svd) {
  rounds(6, 12);  // the factors and what is made of them
  // Functions that do not see the sign of a pair of vectors: u[i] vh[i] and s.
  const auto products = [](bool full) {
    return [full](const Tensor& x) {
      const auto [u, s, vh] = svd(x, full);
      const int64_t k = s.size(-1);
      const Tensor left = slice(u, -1, 0, k);
      const Tensor right = slice(vh, -2, 0, k);
      return TensorList{s, matmul(mul(left, weights_of_columns(s)), right),
                        matmul(square(left), square(right))};
    };
  };
  for (const Shape& s : {Shape{1, 3, 3}, Shape{1, 4, 2}, Shape{1, 2, 4}, Shape{2, 3, 2},
                         Shape{2, 2, 3}, Shape{1, 1, 1}, Shape{0, 3, 2}}) {
    add(products(false), {well(randn(s))});
  }
  add(products(true), {well(randn({1, 4, 2}))});
  add(products(true), {well(randn({1, 2, 4}))});
  add([](const Tensor& x) { return square(svd(x, false).u); }, {well(randn({1, 4, 2}))});
  add([](const Tensor& x) { return square(svd(x, false).vh); }, {well(randn({1, 2, 4}))});
  // Values alone, also where they are equal.
  add([](const Tensor& x) { return svdvals(x); }, {well(randn({2, 3, 4}))});
  add([](const Tensor& x) { return sum(svdvals(eye(3, -1, x.dtype()) * x)); },
      {full({}, 2, kFloat64)})
      .second_order(false);
  add([](const Tensor& x) { return svd(x).u; }, {well(randn({1, 3, 0}))}).differentiable({});
  add_large(products(false), {well(0.2 * randn({40, 30, 30}))});
  const auto backward_of = [](const Tensor& x) {
    const Tensor leaf = x.detach().set_requires_grad();
    sum(svd(leaf).u).backward();
    return leaf.grad();
  };
  add_error<RuntimeError>(backward_of, {eye(2, -1, kFloat64)},
                          "svd: the matrix has singular values 0 and 1 equal");
  add_error<RuntimeError>(backward_of, {randn({3, 2})}, "beyond the first 2");
  const auto plain = [](const Tensor& x) { return svd(x).s; };
  add_error<RuntimeError>(plain, {full({2, 2, 2}, NAN, kFloat64)},
                          "svd: matrix [0] of the batch [2] is not finite");
  add_error<ValueError>(plain, {randn({3})}, "svd: needs a matrix");
}

OP_SAMPLES(eigh) {
  rounds(6, 12);  // the factors and what is made of them
  const auto products = [](bool upper) {
    return [upper](const Tensor& x) {
      const auto [w, v] = eigh(symmetric(x), upper);
      return TensorList{w, matmul(mul(v, weights_of_columns(w)), v.t()), square(v)};
    };
  };
  for (const Shape& s : {Shape{1, 1, 1}, Shape{1, 3, 3}, Shape{2, 3, 3}, Shape{0, 2, 2}}) {
    add(products(false), {half_of(randn(s))});
  }
  add(products(true), {half_of(randn({1, 3, 3}))});
  add([](const Tensor& x) { return eigvalsh(symmetric(x)); }, {half_of(randn({2, 3, 3}))});
  add([](const Tensor& x) { return sum(square(eigvalsh(eye(3, -1, x.dtype()) * x))); },
      {full({}, 2, kFloat64)})
      .second_order(false);
  add_large(products(false), {half_of(0.2 * randn({40, 30, 30}))});
  const auto backward_of = [](const Tensor& x) {
    const Tensor leaf = x.detach().set_requires_grad();
    sum(eigh(leaf).eigenvectors).backward();
    return leaf.grad();
  };
  add_error<RuntimeError>(backward_of, {eye(2, -1, kFloat64)},
                          "eigh: the matrix has eigenvalues 0 and 1 equal");
  const auto plain = [](const Tensor& x) { return eigvalsh(x); };
  add_error<RuntimeError>(plain, {full({2, 2}, kInfinity, kFloat64)},
                          "eigh: the matrix is not finite");
  add_error<ValueError>(plain, {randn({2, 3})}, "needs square matrices");
}

OP_SAMPLES(solve) {
  const auto fn = [](const Tensor& a, const Tensor& b) { return solve(a, b); };
  add(fn, {well(randn({1, 3, 3})), randn({3, 2})});
  add(fn, {well(randn({1, 3, 3})), randn({3})});
  add(fn, {well(randn({2, 3, 3})), randn({2, 3})});  // a vector per matrix
  add(fn, {well(randn({2, 3, 3})), randn({3, 2})});  // one right side for all
  add(fn, {well(randn({1, 3, 3})), randn({2, 3, 1})});
  add(fn, {well(randn({2, 1, 2, 2})), randn({3, 2, 2})});
  add(fn, {well(randn({1, 3, 3})), randn({3, 0})});
  add(fn, {well(randn({0, 2, 2})), randn({2, 1})});
  add_large(fn, {well(0.2 * randn({40, 30, 30})), randn({40, 30, 2})});
  const auto plain = [](const Tensor& a, const Tensor& b) { return solve(a, b); };
  add_error<RuntimeError>(plain, {zeros({2, 3, 3}, kFloat64), randn({3, 1})},
                          "solve: matrix [0] of the batch [2] is singular");
  add_error<ValueError>(plain, {randn({2, 3}), randn({3})}, "needs square matrices");
  add_error<ValueError>(plain, {randn({3, 3}), randn({2, 2})}, "a [3, 3], b [2, 2]");
  add_error<ValueError>(plain, {randn({2, 3, 3}), randn({3, 3, 1})}, "solve");
  add_error<TypeError>(plain, {randn({3, 3}), integers({3}, 2)}, "dtypes differ");
}

OP_SAMPLES(solve_triangular) {
  const auto fn = [](bool upper, bool left, bool unit) {
    return
        [=](const Tensor& a, const Tensor& b) { return solve_triangular(a, b, upper, left, unit); };
  };
  for (const bool upper : {false, true}) {
    for (const bool unit : {false, true}) {
      add(fn(upper, true, unit), {well(randn({1, 3, 3})), randn({3, 2})});
      add(fn(upper, false, unit), {well(randn({1, 3, 3})), randn({2, 3})});
    }
  }
  add(fn(false, true, false), {well(randn({2, 3, 3})), randn({3, 1})});
  add(fn(true, false, false), {well(randn({1, 2, 2})), randn({3, 2, 2})});
  add_large(fn(false, true, false), {well(0.2 * randn({40, 30, 30})), randn({40, 30, 2})});
  add_error<RuntimeError>([](const Tensor& a) { return solve_triangular(a, a, true); },
                          {zeros({2, 2}, kFloat64)}, "its diagonal has a 0");
  add_error<ValueError>(fn(true, true, false), {randn({2, 2}), randn({2})}, "b [2]");
  add_error<ValueError>(fn(true, false, false), {randn({2, 2}), randn({2, 3})}, "b [2, 3]");
}

OP_SAMPLES(inverse) {
  const auto fn = [](const Tensor& x) { return inverse(x); };
  for (const Shape& s : {Shape{1, 1, 1}, Shape{1, 3, 3}, Shape{2, 2, 2, 2}, Shape{1, 0, 0}}) {
    add(fn, {well(randn(s))});
  }
  add_large(fn, {well(0.2 * randn({40, 30, 30}))});
  const auto plain = [](const Tensor& x) { return inverse(x); };
  add_error<RuntimeError>(plain, {full({2, 2}, 1, kFloat64)}, "inverse: the matrix is singular");
  add_error<ValueError>(plain, {randn({2, 3})}, "needs square matrices");
}

OP_SAMPLES(det) {
  const auto fn = [](const Tensor& x) { return det(x); };
  for (const Shape& s : {Shape{1, 1, 1}, Shape{1, 3, 3}, Shape{2, 2, 2, 2}, Shape{1, 0, 0}}) {
    add(fn, {well(randn(s))});
  }
  // About 1, which 16 bits can hold; the matrix is an input, as the roundings of its elements would
  // add up in the determinant.
  add_large(fn, {eye(30, -1, kFloat64) + 0.02 * randn({40, 30, 30})});
  add_error<ValueError>([](const Tensor& x) { return det(x); }, {randn({2, 3})}, "needs square");
}

OP_SAMPLES(slogdet) {
  const auto fn = [](const Tensor& x) {
    const auto [sign, logabsdet] = slogdet(x);
    return TensorList{sign, logabsdet};
  };
  for (const Shape& s : {Shape{1, 1, 1}, Shape{1, 3, 3}, Shape{2, 2, 2, 2}, Shape{1, 0, 0}}) {
    add(fn, {well(randn(s))});
  }
  add_large(fn, {well(0.2 * randn({40, 30, 30}))});
  const auto backward_of = [](const Tensor& x) {
    const Tensor leaf = x.detach().set_requires_grad();
    slogdet(leaf).logabsdet.backward();
    return leaf.grad();
  };
  add_error<RuntimeError>(backward_of, {zeros({2, 2}, kFloat64)}, "is singular");
  add_error<ValueError>([](const Tensor& x) { return slogdet(x).sign; }, {randn({2, 3})},
                        "needs square");
}

}  // namespace tapestry
