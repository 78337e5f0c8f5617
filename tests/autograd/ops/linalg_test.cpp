#include "autograd/ops/linalg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/expect_close.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor random(const Shape& shape, DType dtype = kFloat64) {
  return randn(shape, dtype, RandomKey{.seed = 7, .stream = stream_of(shape.str())});
}

double distance(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  return a.numel() == 0 ? 0.0 : max(abs(sub(a, b).to(kFloat64))).item();
}

TEST(Linalg, FactorsGiveTheMatrixBack) {
  for (const Shape& shape :
       {Shape{5, 5}, Shape{7, 4}, Shape{4, 7}, Shape{2, 3, 6, 4}, Shape{120, 90}}) {
    const Tensor a = random(shape);
    const int64_t m = a.size(-2);
    const int64_t n = a.size(-1);
    const int64_t k = std::min(m, n);
    for (const bool full : {false, true}) {
      SCOPED_TRACE(concat(shape, full ? " full" : " reduced"));
      const auto [q, r] = qr(a, full);
      EXPECT_EQ(q.size(-1), full ? m : k);
      EXPECT_LT(distance(matmul(q, r), a), 1e-12);
      EXPECT_LT(distance(matmul(q.t(), q),
                         eye(q.size(-1), -1, kFloat64).expand(matmul(q.t(), q).shape())),
                1e-12);
      EXPECT_EQ(distance(r, triu(r)), 0);
      const auto [u, s, vh] = svd(a, full);
      EXPECT_EQ(u.size(-1), full ? m : k);
      EXPECT_EQ(vh.size(-2), full ? n : k);
      const Tensor product = matmul(mul(slice(u, -1, 0, k), unsqueeze(s, -2)), slice(vh, -2, 0, k));
      EXPECT_LT(distance(product, a), 1e-11);
      EXPECT_LT(distance(matmul(u.t(), u),
                         eye(u.size(-1), -1, kFloat64).expand(matmul(u.t(), u).shape())),
                1e-12);
      EXPECT_EQ(distance(s, sort(s, -1, /*descending=*/true).values), 0);
    }
  }
  const Tensor b = random({3, 6, 6});
  const Tensor symmetric = b + b.t();
  for (const bool upper : {false, true}) {
    // The other triangle is not read.
    const Tensor half = upper ? triu(symmetric) : tril(symmetric);
    const auto [w, v] = eigh(half, upper);
    EXPECT_LT(distance(matmul(mul(v, unsqueeze(w, -2)), v.t()), symmetric), 1e-12);
    EXPECT_EQ(distance(w, sort(w, -1).values), 0);
  }
  const Tensor positive = matmul(b, b.t()) + eye(6, -1, kFloat64);
  const Tensor l = cholesky(tril(positive));
  EXPECT_LT(distance(matmul(l, l.t()), positive), 1e-12);
  EXPECT_EQ(distance(cholesky(positive, /*upper=*/true), l.t()), 0);
}

// Values of torch.linalg of PyTorch 1.13, which calls LAPACK.
TEST(Linalg, AgreesWithPyTorch) {
  const Tensor a = tensor(std::vector<double>{2, -1, 0.5, 1, 3, -2, 0.25, 1.5, 4}, {3, 3});
  a.set_requires_grad();
  const Tensor w = sin(arange(0.0, 9.0, 1, kFloat64)).reshape({3, 3});
  const auto expect = [](const Tensor& x, const std::vector<double>& values) {
    expect_close(x, tensor(values, x.shape()), 1e-13);
  };
  const auto gradient = [&](const Tensor& y) { return grad(y, {a})[0]; };

  const auto [q, r] = qr(a);
  expect(q, {-0.888888888888889, 0.447795750152195, 0.0967238820328742, -0.444444444444444,
             -0.791702886269081, -0.419136822142455, -0.111111111111111, -0.415554456141237,
             0.902756232306825});
  expect(r, {-2.25, -0.611111111111111, 0, 0, -3.44623609317129, 0.145085823049311, 0, 0,
             4.49766051452865});
  expect(gradient(sum(q * w) + sum(r * w * w)),
         {0.159410096319856, -0.491650817896505, -0.228512300592992, 0.0654602956105741,
          -0.253662400009716, -1.50573906571437, -1.53712195300115, -1.42480462125124,
          0.409658373715161});

  const auto [u, s, vh] = svd(a);
  expect(s, {4.50351151865182, 3.53171098245563, 2.19269275954766});
  const Tensor first_row = w.select(0, 0);
  const Tensor second_row = w.select(0, 1);
  expect(gradient(sum(u * u * w) + sum(s * first_row) + sum(matmul(u * second_row, vh))),
         {0.873393064960325, -0.149971984563845, 0.206334676335292, 0.379478048168658,
          0.628829068701486, -0.00506780959511043, 0.500376778830848, 0.443838556509238,
          -0.0253090382618141});

  const auto [eigenvalues, v] = eigh(a + a.t());
  expect(eigenvalues, {3.86017859636925, 5.89586927562002, 8.24395212801072});
  expect(gradient(sum(v * v * w) + sum(eigenvalues * first_row)),
         {0.0642100823660706, 0.152414171702128, 0.313623244143962, 0.152414171702128,
          1.64120261786193, 0.0286691221073511, 0.313623244143962, 0.0286691221073511,
          1.79612412303916});

  const Tensor l = cholesky(matmul(a, a.t()));
  expect(l, {2.29128784747792, 0, 0, -0.87287156094397, 3.63841933236058, 0, 0.436435780471985,
             -0.788542319333544, 4.18332700373087});
  expect(gradient(sum(l * w)), {-0.064871044001908, -0.244752852469528, -0.230021528931424,
                                -0.185137243852713, -0.0828769612659141, 1.22148817188614,
                                0.133589718953105, 1.12890622831359, 0.443010909974391});

  const Tensor x = solve(a, w);
  expect(x, {0.0152146892956246, 0.268265124552407, 0.274673841463714, -0.00418780439924622,
             -0.194695322951998, -0.206200859466167, -0.0692343659809907, 0.220490825502171,
             0.307497768864176});
  expect(gradient(sum(x * x)), {-0.161247993688362, 0.119025108388698, -0.156361209291678,
                                0.0355466650346163, -0.0264204155168054, 0.0366357911924804,
                                -0.03334977467888, 0.0249341020532027, -0.0361191929522324});

  const Tensor logabsdet = slogdet(a).logabsdet;
  expect(logabsdet, {3.55177024014153});
  expect(gradient(logabsdet), {0.43010752688172, -0.129032258064516, 0.021505376344086,
                               0.136200716845878, 0.225806451612903, -0.0931899641577061,
                               0.014336917562724, 0.129032258064516, 0.200716845878136});
}

TEST(Linalg, DeterminantsOfSingularMatricesHaveTheirCofactorsAsGradient) {
  // Rank 2: the cofactors are not 0. Rank 1: they are.
  const Tensor two = tensor(std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9}, {3, 3});
  two.set_requires_grad();
  det(two).backward();
  EXPECT_LT(
      distance(two.grad(), tensor(std::vector<double>{-3, 6, -3, 6, -12, 6, -3, 6, -3}, {3, 3})),
      1e-12);
  const Tensor one = ones({3, 3}, kFloat64);
  one.set_requires_grad();
  det(one).backward();
  EXPECT_LT(max(abs(one.grad())).item(), 1e-12);
  const Tensor small = zeros({1, 1}, kFloat64);
  small.set_requires_grad();
  det(small).backward();
  EXPECT_EQ(small.grad().item(), 1);
  const Tensor zero = zeros({2, 2}, kFloat64);
  zero.set_requires_grad();
  EXPECT_THAT(
      message_of<RuntimeError>([&] { grad(det(zero), {zero}, {}, {.create_graph = true}); }),
      HasSubstr("inverse: the matrix is singular"));
}

TEST(Linalg, LogarithmsOfDeterminantsThatOverflow) {
  const Tensor a = mul(eye(400, -1, kFloat32), -1e3);
  const auto [sign, logabsdet] = slogdet(a);
  EXPECT_EQ(sign.item(), 1);
  EXPECT_NEAR(logabsdet.item(), 400 * std::log(1e3), 1e-3);
  const auto [none, lowest] = slogdet(zeros({2, 2}));
  EXPECT_EQ(none.item(), 0);
  EXPECT_EQ(lowest.item(), -kInfinity);
  EXPECT_FALSE(sign.requires_grad());
}

TEST(Linalg, MatrixNorms) {
  const Tensor a = tensor(std::vector<double>{1, -2, 3, -4, 5, -6}, {2, 3});
  EXPECT_DOUBLE_EQ(matrix_norm(a).item(), std::sqrt(91.0));
  EXPECT_EQ(matrix_norm(a, 1).item(), 9);
  EXPECT_EQ(matrix_norm(a, -1).item(), 5);
  EXPECT_EQ(matrix_norm(a, kInfinity).item(), 15);
  EXPECT_EQ(matrix_norm(a, -kInfinity).item(), 6);
  EXPECT_NEAR(matrix_norm(a, 2).item(), 9.508032000695724, 1e-13);
  EXPECT_NEAR(matrix_norm(a, -2).item(), 0.7728696356734838, 1e-13);
  EXPECT_NEAR(matrix_norm(a, "nuc").item(), 9.508032000695724 + 0.7728696356734838, 1e-12);
  const Tensor b = random({3, 2, 4});
  EXPECT_EQ(matrix_norm(b, 1, {2, 0}, true).shape(), (Shape{1, 2, 1}));
  EXPECT_LT(distance(matrix_norm(b, 1, {2, 0}), amax(sum(abs(b), {2}), {0})), 1e-15);
  EXPECT_LT(distance(matrix_norm(b, 1, {0, 2}), amax(sum(abs(b), {0}), {1})), 1e-15);

  const auto function = [](const TensorList& in) {
    TensorList out = {matrix_norm(in[0]), matrix_norm(in[0], "nuc")};
    for (const double ord : {1.0, -1.0, 2.0, -2.0, kInfinity, -kInfinity}) {
      out.push_back(matrix_norm(in[0], ord));
    }
    return out;
  };
  b.set_requires_grad();
  EXPECT_TRUE(gradcheck(function, {b})) << gradcheck(function, {b}).message;
  EXPECT_TRUE(gradgradcheck(function, {b})) << gradgradcheck(function, {b}).message;
  const Tensor zero = zeros({2, 2}, kFloat64);
  zero.set_requires_grad();
  matrix_norm(zero).backward();
  EXPECT_EQ(max(abs(zero.grad())).item(), 0);

  EXPECT_THAT(message_of<ValueError>([&] { matrix_norm(a, "max"); }),
              HasSubstr("unknown order 'max'"));
  EXPECT_THAT(message_of<ValueError>([&] { matrix_norm(a, 3); }), HasSubstr("unknown order 3"));
  EXPECT_THAT(message_of<ValueError>([&] {
                matrix_norm(a, 1, {0, -2});
              }),
              HasSubstr("are the same"));
  EXPECT_THAT(message_of<ValueError>([&] { matrix_norm(ones({3})); }), HasSubstr("needs a matrix"));
}

TEST(Linalg, HalfPrecisionIsComputedInFloat32AndRoundedOnce) {
  const Tensor a = (random({4, 4}) + 4 * eye(4, -1, kFloat64)).to(kBFloat16);
  const Tensor exact = inverse(a.to(kFloat64));
  const Tensor rounded = inverse(a);
  EXPECT_EQ(rounded.dtype(), kBFloat16);
  EXPECT_EQ(distance(rounded, exact.to(kFloat32).to(kBFloat16)), 0);
}

TEST(Linalg, NumberOfTheFirstMatrixThatFailsDoesNotDependOnThreads) {
  Tensor a = expand(eye(8, -1, kFloat64), {400, 8, 8}).clone();
  for (const int64_t i : {57, 300}) {
    const NoGradGuard guard;
    const Tensor matrix = a.select(0, i);
    matrix.data<double>()[0] = 0;
  }
  for (const int threads : {1, 2, 5}) {
    const int before = num_threads();
    set_num_threads(threads);
    EXPECT_THAT(message_of<RuntimeError>([&] { inverse(a); }),
                HasSubstr("matrix [57] of the batch [400] is singular"));
    set_num_threads(before);
  }
}

}  // namespace
}  // namespace tapestry
