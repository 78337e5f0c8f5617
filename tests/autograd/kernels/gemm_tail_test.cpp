// Products whose sum goes on in other memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "tests/autograd/kernels/gemm_testing.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

using gemm_testing::as_double;
using gemm_testing::random_matrix;
using gemm_testing::tolerance;

struct TailCase {
  int64_t m, n, k, tail;
  bool trans = false;  // of B and E
  double beta = 0;
};
std::ostream& operator<<(std::ostream& out, const TailCase& c) {
  return out << c.m << " x " << c.n << " x (" << c.k << " + " << c.tail << ")"
             << (c.trans ? " transposed" : "") << " beta " << c.beta;
}

/// Rows of A, D and C are longer than the matrices.
template <class T, class Out>
struct TailProduct {
  explicit TailProduct(const TailCase& c)
      : of(c),
        a(random_matrix<T>(c.m * (c.k + 2), 1)),
        b(random_matrix<T>(c.n * c.k, 2)),
        d(random_matrix<T>(c.m * (c.tail + 6), 3)),
        e(random_matrix<T>(c.n * c.tail, 4)),
        c(random_matrix<Out>(c.m * (c.n + 3), 5)) {}

  GemmShape shape() const {
    return {.dtype = dtype_of<T>(),
            .c_dtype = dtype_of<Out>(),
            .trans_b = of.trans,
            .m = of.m,
            .n = of.n,
            .k = of.k,
            .lda = of.k + 2,
            .ldb = of.trans ? of.k : of.n,
            .beta = of.beta,
            .ldc = of.n + 3};
  }
  GemmTail tail() const {
    return {of.trans, of.tail, d.data(), of.tail + 6, e.data(), of.trans ? of.tail : of.n};
  }
  std::vector<Out> run() const {
    std::vector<Out> out = c;
    gemm_with_tail(shape(), a.data(), b.data(), out.data(), tail());
    return out;
  }
  double exact(int64_t i, int64_t j) const {
    const auto right = [&](const std::vector<T>& x, int64_t p, int64_t k) {
      return as_double(x[static_cast<size_t>(of.trans ? j * k + p : p * of.n + j)]);
    };
    double sum = of.beta == 0 ? 0 : of.beta * as_double(c[static_cast<size_t>(i * (of.n + 3) + j)]);
    for (int64_t p = 0; p < of.k; ++p) {
      sum += as_double(a[static_cast<size_t>(i * (of.k + 2) + p)]) * right(b, p, of.k);
    }
    for (int64_t p = 0; p < of.tail; ++p) {
      sum += as_double(d[static_cast<size_t>(i * (of.tail + 6) + p)]) * right(e, p, of.tail);
    }
    return sum;
  }

  TailCase of;
  std::vector<T> a, b, d, e;
  std::vector<Out> c;
};

template <class T, class Out>
void check_tail(const TailCase& given) {
  const TailProduct<T, Out> product(given);
  const std::vector<Out> got = product.run();
  int wrong = 0;
  for (int64_t i = 0; i < given.m; ++i) {
    for (int64_t j = 0; j < given.n + 3; ++j) {
      const auto at = static_cast<size_t>(i * (given.n + 3) + j);
      if (j >= given.n) {
        wrong += as_double(got[at]) == as_double(product.c[at]) ? 0 : 1;
        continue;
      }
      // Where it is two products, the first is rounded too.
      const double exact = product.exact(i, j);
      const double once = tolerance<T, Out>(given.k + given.tail, exact);
      const double first =
          sizeof(Out) == 2 ? tolerance<T, Out>(0, std::abs(exact) + static_cast<double>(given.tail))
                           : 0;
      wrong += std::abs(as_double(got[at]) - exact) <= once + first ? 0 : 1;
    }
  }
  EXPECT_EQ(wrong, 0) << given;
}

TEST(GemmTail, IsPartOfTheSum) {
  at_every_cpu_level([&] {
    for (const int64_t m : {1, 16, 75, 300}) {
      for (const TailCase& c :
           {TailCase{m, 48, 64, 16}, TailCase{m, 65, 66, 4, true}, TailCase{m, 130, 33, 16},
            TailCase{m, 130, 64, 5, true}, TailCase{m, 64, 128, 48, true, 1},
            TailCase{m, 50, 6000, 8}, TailCase{m, 50, 6000, 8, true, 0.5}}) {
        check_tail<float, float>(c);
        check_tail<BFloat16, BFloat16>(c);
        check_tail<BFloat16, float>(c);
        check_tail<Float16, Float16>(c);
      }
    }
    check_tail<double, double>({40, 30, 20, 6, true, 1});
  });
}

template <class T>
void expect_bits_of_the_product_alone(const TailCase& given) {
  TailProduct<T, T> product(given);
  std::fill(product.e.begin(), product.e.end(), T(0.0F));
  const std::vector<T> got = product.run();
  std::vector<T> alone = product.c;
  gemm(product.shape(), product.a.data(), product.b.data(), alone.data());
  EXPECT_EQ(std::memcmp(got.data(), alone.data(), got.size() * sizeof(T)), 0) << given;
}

TEST(GemmTail, OfZerosChangesNoBit) {
  at_every_cpu_level([&] {
    for (const TailCase& c : {TailCase{300, 130, 64, 16, true}, TailCase{75, 130, 64, 16},
                              TailCase{300, 50, 6000, 16}, TailCase{3, 130, 64, 16, true}}) {
      expect_bits_of_the_product_alone<float>(c);
      expect_bits_of_the_product_alone<BFloat16>(c);
    }
  });
}

TEST(GemmTail, GivesTheSameBitsInAnyTeam) {
  const int team = num_threads();
  at_every_cpu_level([&] {
    for (const TailCase& c : {TailCase{300, 130, 64, 16, true}, TailCase{75, 400, 64, 16}}) {
      const TailProduct<BFloat16, BFloat16> product(c);
      set_num_threads(1);
      const std::vector<BFloat16> serial = product.run();
      set_num_threads(3);
      const std::vector<BFloat16> got = product.run();
      EXPECT_EQ(std::memcmp(got.data(), serial.data(), got.size() * sizeof(BFloat16)), 0) << c;
    }
  });
  set_num_threads(team);
}

}  // namespace
}  // namespace tapestry::kernels
