#include "autograd/kernels/norm.h"

#include "fused_testing.h"

namespace tapestry::testing {
namespace norm_test {
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

kernels::NormShape shape_of(const Case& c) {
  return {.rows = c.s.rows,
          .n = c.s.n,
          .centered = c.centered,
          .sum_dtype = c.x.dtype(),
          .normed_dtype = c.x.dtype(),
          .weight_dtype = c.weight.dtype(),
          .x_dtype = c.x.dtype(),
          .x_bias_dtype = c.weight.dtype()};
}

kernels::NormForward forward_of(const Case& c, Result& r) {
  return {.shape = shape_of(c),
          .eps = kEps,
          .residual = c.x.data(),
          .weight = c.affine ? c.weight.data() : nullptr,
          .bias = c.affine && c.centered ? c.bias.data() : nullptr,
          .normed = r.y.data(),
          .mean = c.centered ? r.mean.data() : nullptr,
          .rstd = r.rstd.data()};
}

kernels::NormBackward backward_of(const Case& c, Result& r) {
  const DType parameters = c.weight.dtype();
  kernels::NormBackward call{.shape = shape_of(c),
                             .dnormed = c.dy.data(),
                             .sum = c.x.data(),
                             .weight = c.affine ? c.weight.data() : nullptr,
                             .mean = r.mean.data(),
                             .rstd = r.rstd.data(),
                             .d = r.dx.data()};
  call.dweight = {r.dweight.data(), parameters, false};
  if (c.centered) {
    call.dbias = {r.dbias.data(), parameters, false};
  }
  return call;
}

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
  kernels::norm_forward(forward_of(c, r));
  kernels::norm_backward(backward_of(c, r));
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
  at_every_cpu_level([] {
    expect_matches(make(kFloat32, kBFloat16, true, true, {5, 65}));
    expect_matches(make(kFloat32, kFloat16, false, true, {5, 65}));
  });
}

TEST(Norm, LargeMean) {
  at_every_cpu_level([] {
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
    const auto only = [&](bool dx, bool dweight, bool dbias) {
      Result r = expected;
      kernels::NormBackward call = backward_of(c, r);
      r.dx = Array(dtype, 40 * 33);
      r.dweight = Array(dtype, 33);
      r.dbias = Array(dtype, 33);
      call.d = dx ? r.dx.data() : nullptr;
      call.dweight.out = dweight ? r.dweight.data() : nullptr;
      call.dbias.out = dbias ? r.dbias.data() : nullptr;
      kernels::norm_backward(call);
      return r;
    };
    EXPECT_TRUE(only(true, false, false).dx.same_bits(expected.dx));
    EXPECT_TRUE(only(false, true, false).dweight.same_bits(expected.dweight));
    EXPECT_TRUE(only(false, false, true).dbias.same_bits(expected.dbias));

    Result r = expected;
    r.y = c.x;
    kernels::NormForward forward = forward_of(c, r);
    forward.residual = r.y.data();
    kernels::norm_forward(forward);
    EXPECT_TRUE(r.y.same_bits(expected.y));
    r.dx = c.dy;
    kernels::NormBackward backward = backward_of(c, r);
    backward.dnormed = r.dx.data();
    kernels::norm_backward(backward);
    EXPECT_TRUE(r.dx.same_bits(expected.dx));
  });
}

TEST(Norm, GradientsOfParametersMayBeAddedTo) {
  at_every_cpu_level([] {
    const Case c = make(kBFloat16, kFloat32, true, true, {40, 33});
    const Result expected = run(c);
    Result r = expected;
    kernels::NormBackward call = backward_of(c, r);
    call.dweight.accumulate = true;
    kernels::norm_backward(call);
    for (int64_t i = 0; i < 33; ++i) {
      EXPECT_NEAR(r.dweight[i], 2 * expected.dweight[i], 1e-5 * std::abs(expected.dweight[i]));
      EXPECT_EQ(r.dbias[i], expected.dbias[i]);
    }
  });
}

// sum = residual + x + bias in front of the norm, and both gradients behind it, are what two steps
// give. c.x is the residual, whose dtype may differ from that of x and of the norm.
void expect_add_matches(DType sum_dtype, DType x_dtype, DType normed_dtype, bool with_bias) {
  SCOPED_TRACE(::testing::Message() << name_of(sum_dtype) << " + " << name_of(x_dtype) << " -> "
                                    << name_of(normed_dtype) << ", bias " << with_bias);
  constexpr int64_t kRows = 21;
  constexpr int64_t kN = 130;
  const DType wide = sum_dtype == kFloat64 ? kFloat64 : kFloat32;
  const Case c = make(sum_dtype, wide, true, true, {kRows, kN});
  const Array x = random_array(x_dtype, kRows * kN, 11);
  const Array bias = random_array(wide, kN, 12);
  const Array dsum = random_array(sum_dtype, kRows * kN, 13);
  const Array dy = random_array(normed_dtype, kRows * kN, 14);

  Array sum(sum_dtype, kRows * kN);
  for (int64_t i = 0; i < kRows * kN; ++i) {
    sum.set(i, c.x[i] + (x[i] + (with_bias ? bias[i % kN] : 0.0)));
  }
  const Case norm{true, true, c.s, sum, c.weight, c.bias, dy};
  const Expected e = reference(norm);
  Doubles d(kRows * kN);
  Doubles dbias(kN);
  for (int64_t i = 0; i < kRows * kN; ++i) {
    d[i] = e.dx[i] + dsum[i];
    dbias[i % kN] += d[i];
  }

  Result r{Array(normed_dtype, kRows * kN), Array(wide, kRows), Array(wide, kRows),
           Array(sum_dtype, kRows * kN),    Array(wide, kN),    Array(wide, kN)};
  Array written(sum_dtype, kRows * kN);
  Array dx(x_dtype, kRows * kN);
  Array dx_bias(wide, kN);
  kernels::NormForward forward = forward_of(c, r);
  forward.shape.x_dtype = x_dtype;
  forward.shape.normed_dtype = normed_dtype;
  forward.x = x.data();
  forward.x_bias = with_bias ? bias.data() : nullptr;
  forward.sum = written.data();
  kernels::norm_forward(forward);
  const double t = tolerance(sum_dtype);
  expect_close(written, sum.values(), "sum", t);
  expect_close(r.y, e.y, "normed", std::max(4 * t, tolerance(normed_dtype)));

  kernels::NormBackward backward = backward_of(c, r);
  backward.shape = forward.shape;
  backward.sum = written.data();
  backward.dsum = dsum.data();
  backward.dnormed = dy.data();
  backward.dx = dx.data();
  backward.dx_bias = {dx_bias.data(), wide, false};
  kernels::norm_backward(backward);
  const double td = std::max(4 * t, tolerance(normed_dtype));
  expect_close(r.dx, d, "d", td);
  expect_close(dx, d, "dx", std::max(td, tolerance(x_dtype)));
  expect_close(r.dweight, e.dweight, "dweight", td);
  expect_close(dx_bias, dbias, "dx_bias", td);
}

TEST(Norm, WithResidualMatchesLoops) {
  at_every_cpu_level([] {
    for (const bool with_bias : {true, false}) {
      expect_add_matches(kFloat64, kFloat64, kFloat64, with_bias);
      expect_add_matches(kFloat32, kFloat32, kFloat32, with_bias);
      expect_add_matches(kFloat32, kBFloat16, kBFloat16, with_bias);
      expect_add_matches(kBFloat16, kBFloat16, kBFloat16, with_bias);
      expect_add_matches(kFloat32, kFloat16, kFloat32, with_bias);
    }
  });
}

TEST(Norm, SameForAnyTeam) {
  at_every_cpu_level([] {
    for (const bool centered : {true, false}) {
      expect_same_for_any_team([&] {
        const Result r = run(make(kFloat32, kFloat32, centered, true, {1111, 131}));
        return std::vector<Array>{r.y, r.rstd, r.dx, r.dweight};
      });
    }
  });
}

}  // namespace
}  // namespace norm_test
}  // namespace tapestry::testing
