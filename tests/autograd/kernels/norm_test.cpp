#include "autograd/kernels/norm.h"

#include "fused_testing.h"

namespace tapestry::testing {
namespace {

struct Sizes {
  int64_t rows;
  int64_t n;
};
constexpr Sizes kSizes[] = {{0, 4}, {1, 1}, {3, 7}, {40, 33}, {2, 1025}};
constexpr double kEps = 1e-5;

/// Weights of the compute type and of x's own type.
std::vector<DType> weight_dtypes(DType dtype) {
  if (dtype == kFloat64 || dtype == kFloat32) {
    return {dtype};
  }
  return {kFloat32, dtype};
}

struct Case {
  bool centered;
  bool affine;
  Sizes s;
  Array x;
  Array weight;
  Array bias;
  Array dy;
};

struct Expected {
  Doubles y, mean, rstd, dx, dweight, dbias;
};

Expected reference(const Case& c) {
  const int64_t rows = c.s.rows;
  const int64_t n = c.s.n;
  Expected e{Doubles(rows * n), Doubles(rows), Doubles(rows),
             Doubles(rows * n), Doubles(n),    Doubles(n)};
  for (int64_t r = 0; r < rows; ++r) {
    const auto x = [&](int64_t i) { return c.x[r * n + i]; };
    const auto w = [&](int64_t i) { return c.affine ? c.weight[i] : 1.0; };
    double mean = 0;
    double variance = 0;
    for (int64_t i = 0; c.centered && i < n; ++i) {
      mean += x(i) / n;
    }
    for (int64_t i = 0; i < n; ++i) {
      variance += (x(i) - mean) * (x(i) - mean) / n;
    }
    const double rstd = 1 / std::sqrt(variance + kEps);
    e.mean[r] = mean;
    e.rstd[r] = rstd;
    double g_average = 0;
    double gx_average = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double xhat = (x(i) - mean) * rstd;
      const double dy = c.dy[r * n + i];
      e.y[r * n + i] = xhat * w(i) + (c.affine && c.centered ? c.bias[i] : 0.0);
      e.dweight[i] += dy * xhat;
      e.dbias[i] += dy;
      g_average += c.centered ? dy * w(i) / n : 0.0;
      gx_average += dy * w(i) * xhat / n;
    }
    for (int64_t i = 0; i < n; ++i) {
      const double xhat = (x(i) - mean) * rstd;
      e.dx[r * n + i] = rstd * (c.dy[r * n + i] * w(i) - g_average - xhat * gx_average);
    }
  }
  return e;
}

struct Result {
  Array y, mean, rstd, dx, dweight, dbias;
};

Result run(const Case& c) {
  const DType xt = c.x.dtype();
  const DType wt = c.weight.dtype();
  const auto [rows, n] = c.s;
  Result r{Array(xt, rows * n),
           Array(statistics_dtype(xt), rows),
           Array(statistics_dtype(xt), rows),
           Array(xt, rows * n),
           Array(wt, n),
           Array(wt, n)};
  const void* weight = c.affine ? c.weight.data() : nullptr;
  if (c.centered) {
    const void* bias = c.affine ? c.bias.data() : nullptr;
    kernels::layer_norm(xt, wt, rows, n, kEps, c.x.data(), weight, bias, r.y.data(), r.mean.data(),
                        r.rstd.data());
    kernels::layer_norm_backward(xt, wt, rows, n, c.dy.data(), c.x.data(), weight, r.mean.data(),
                                 r.rstd.data(), r.dx.data(), r.dweight.data(), r.dbias.data());
  } else {
    kernels::rms_norm(xt, wt, rows, n, kEps, c.x.data(), weight, r.y.data(), r.rstd.data());
    kernels::rms_norm_backward(xt, wt, rows, n, c.dy.data(), c.x.data(), weight, r.rstd.data(),
                               r.dx.data(), r.dweight.data());
  }
  return r;
}

Case make(DType xt, DType wt, bool centered, bool affine, Sizes s, double mean = 0) {
  return {centered,
          affine,
          s,
          random_array(xt, s.rows * s.n, 1, 1, mean),
          random_array(wt, s.n, 2, 0.3, 1),
          random_array(wt, s.n, 3),
          random_array(xt, s.rows * s.n, 4)};
}

void expect_matches(const Case& c, double factor = 1) {
  const Expected e = reference(c);
  const Result r = run(c);
  const double t = factor * tolerance(c.x.dtype());
  const double tw = factor * tolerance(c.weight.dtype());
  expect_close(r.y, e.y, "y", t);
  expect_close(r.rstd, e.rstd, "rstd");
  // One element less its mean is 0: then dx is nothing but the rounding of rstd * dy * weight.
  if (c.s.n > 1) {
    expect_close(r.dx, e.dx, "dx", t);
  }
  expect_close(r.dweight, e.dweight, "dweight", tw);
  if (c.centered) {
    expect_close(r.mean, e.mean, "mean");
    expect_close(r.dbias, e.dbias, "dbias", tw);
  }
}

TEST(Norm, MatchesLoops) {
  for_each_dtype([](DType dtype) {
    for (const DType weight_dtype : weight_dtypes(dtype)) {
      for (const Sizes& s : kSizes) {
        for (const bool centered : {true, false}) {
          for (const bool affine : {true, false}) {
            SCOPED_TRACE(::testing::Message() << s.rows << "x" << s.n << " centered " << centered
                                              << " affine " << affine);
            expect_matches(make(dtype, weight_dtype, centered, affine, s));
          }
        }
      }
    }
  });
}

TEST(Norm, WeightsNarrowerThanActivations) {
  for_each_level([] {
    expect_matches(make(kFloat32, kBFloat16, true, true, {5, 65}));
    expect_matches(make(kFloat32, kFloat16, false, true, {5, 65}));
  });
}

TEST(Norm, LargeMean) {
  for_each_level([] {
    // The statistics must come from a second pass; E[x^2] - E[x]^2 would be off by several percent.
    const Case c = make(kFloat32, kFloat32, true, true, {20, 769}, 500);
    expect_close(run(c).y, reference(c).y, "y");
    // The backward pass has the mean rounded to float32, off by up to 1.5e-5.
    expect_matches(c, 10);
    expect_matches(make(kFloat64, kFloat64, true, true, {20, 769}, 500), 10);
  });
}

TEST(Norm, OutputsMayBeNullAndInPlace) {
  for_each_dtype([](DType dtype) {
    const Case c = make(dtype, dtype, true, true, {40, 33});
    const Result expected = run(c);
    const auto backward = [&](Array* dx, Array* dweight, Array* dbias) {
      kernels::layer_norm_backward(dtype, dtype, 40, 33, c.dy.data(), c.x.data(), c.weight.data(),
                                   expected.mean.data(), expected.rstd.data(),
                                   dx != nullptr ? dx->data() : nullptr,
                                   dweight != nullptr ? dweight->data() : nullptr,
                                   dbias != nullptr ? dbias->data() : nullptr);
    };
    Array dx(dtype, 40 * 33);
    Array dweight(dtype, 33);
    Array dbias(dtype, 33);
    backward(&dx, nullptr, nullptr);
    EXPECT_TRUE(dx.same_bits(expected.dx));
    backward(nullptr, &dweight, nullptr);
    EXPECT_TRUE(dweight.same_bits(expected.dweight));
    backward(nullptr, nullptr, &dbias);
    EXPECT_TRUE(dbias.same_bits(expected.dbias));

    Array y = c.x;
    Array mean(statistics_dtype(dtype), 40);
    Array rstd(statistics_dtype(dtype), 40);
    kernels::layer_norm(dtype, dtype, 40, 33, kEps, y.data(), c.weight.data(), c.bias.data(),
                        y.data(), mean.data(), rstd.data());
    EXPECT_TRUE(y.same_bits(expected.y));
  });
}

TEST(Norm, SameForAnyTeam) {
  for_each_level([] {
    for (const bool centered : {true, false}) {
      expect_same_for_any_team([&] {
        const Result r = run(make(kFloat32, kFloat32, centered, true, {1111, 131}));
        return std::vector<Array>{r.y, r.rstd, r.dx, r.dweight};
      });
    }
  });
}

}  // namespace
}  // namespace tapestry::testing
