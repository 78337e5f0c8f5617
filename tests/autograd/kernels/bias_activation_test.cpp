#include "autograd/kernels/bias_activation.h"

#include <limits>

#include "fused_testing.h"

namespace tapestry::testing {
namespace {

using kernels::Activation;

constexpr Activation kAll[] = {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu};

double value(Activation f, double z) {
  switch (f) {
    case Activation::kGelu:
      return 0.5 * z * std::erfc(-z / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return z / (1 + std::exp(-1.5957691216057307 * (z + 0.044715 * z * z * z)));
    case Activation::kSilu:
      break;
  }
  return z / (1 + std::exp(-z));
}

double slope(Activation f, double z) {
  const double h = 1e-5;
  return (value(f, z + h) - value(f, z - h)) / (2 * h);
}

struct Sizes {
  int64_t rows;
  int64_t n;
};
constexpr Sizes kSizes[] = {{0, 3}, {1, 1}, {3, 7}, {40, 33}, {2, 1025}};

/// Bias in x's own dtype, and in float32 for 16-bit x.
std::vector<DType> bias_dtypes(DType dtype) {
  if (size_of(dtype) == 2) {
    return {dtype, kFloat32};
  }
  return {dtype};
}

void expect_matches(Activation f, DType dtype, DType bias_dtype, Sizes s) {
  const int64_t rows = s.rows;
  const int64_t n = s.n;
  const Array x = random_array(dtype, rows * n, 1, 2);
  const Array bias = random_array(bias_dtype, n, 2);
  const Array dy = random_array(dtype, rows * n, 3);
  Doubles y(rows * n);
  Doubles dx(rows * n);
  Doubles dbias(n);
  for (int64_t i = 0; i < rows * n; ++i) {
    const double z = x[i] + bias[i % n];
    y[i] = value(f, z);
    dx[i] = dy[i] * slope(f, z);
    dbias[i % n] += dx[i];
  }
  Array got(dtype, rows * n);
  kernels::bias_activation({.f = f,
                            .dtype = dtype,
                            .bias_dtype = bias_dtype,
                            .rows = rows,
                            .n = n,
                            .x = x.data(),
                            .bias = bias.data(),
                            .y = got.data()});
  // Differences of the reference are exact to about 1e-10.
  const double t = std::max(tolerance(dtype), 1e-9);
  expect_close(got, y, "y");
  Array got_dx(dtype, rows * n);
  Array got_dbias(bias_dtype, n);
  const auto backward = [&](const void* dy_, void* dx_, const kernels::ColumnSums& sums) {
    kernels::bias_activation_backward({.f = f,
                                       .dtype = dtype,
                                       .bias_dtype = bias_dtype,
                                       .rows = rows,
                                       .n = n,
                                       .dy = dy_,
                                       .x = x.data(),
                                       .bias = bias.data(),
                                       .dx = dx_,
                                       .dbias = sums});
  };
  backward(dy.data(), got_dx.data(), {got_dbias.data(), bias_dtype, false});
  expect_close(got_dx, dx, "dx", t);
  const double tb = std::max(t, tolerance(bias_dtype));
  expect_close(got_dbias, dbias, "dbias", tb, std::sqrt(static_cast<double>(rows)));

  // One of the two alone; dbias added to what is there; dx in the place of dy.
  Array alone(bias_dtype, n);
  backward(dy.data(), nullptr, {alone.data(), bias_dtype, false});
  EXPECT_TRUE(alone.same_bits(got_dbias));
  Array sums(kernels::ColumnSums{}.dtype, Doubles(n, 1));
  if (dtype != kFloat64) {
    backward(dy.data(), nullptr, {sums.data(), kFloat32, true});
    for (double& d : dbias) {
      d += 1;
    }
    expect_close(sums, dbias, "sums", std::max(t, tolerance(kFloat32)),
                 std::sqrt(static_cast<double>(rows)));
  }
  Array in_place = dy;
  backward(in_place.data(), in_place.data(), {});
  EXPECT_TRUE(in_place.same_bits(got_dx));
}

TEST(BiasActivation, MatchesLoops) {
  for_each_dtype([](DType dtype) {
    for (const Activation f : kAll) {
      for (const DType bias_dtype : bias_dtypes(dtype)) {
        for (const Sizes& s : kSizes) {
          SCOPED_TRACE(::testing::Message() << static_cast<int>(f) << " of " << s.rows << "x" << s.n
                                            << ", bias " << name_of(bias_dtype));
          expect_matches(f, dtype, bias_dtype, s);
        }
      }
    }
  });
}

// y and dx of rows x with a bias of 0 and dy of 1.
struct Both {
  Array y;
  Array dx;
};
Both of_values(Activation f, const Array& x) {
  const int64_t n = x.size();
  const Array bias(kFloat32, Doubles(n, 0));
  const Array dy(x.dtype(), Doubles(n, 1));
  Both out{Array(x.dtype(), n), Array(x.dtype(), n)};
  kernels::bias_activation({.f = f,
                            .dtype = x.dtype(),
                            .bias_dtype = kFloat32,
                            .rows = 1,
                            .n = n,
                            .x = x.data(),
                            .bias = bias.data(),
                            .y = out.y.data()});
  kernels::bias_activation_backward({.f = f,
                                     .dtype = x.dtype(),
                                     .bias_dtype = kFloat32,
                                     .rows = 1,
                                     .n = n,
                                     .dy = dy.data(),
                                     .x = x.data(),
                                     .bias = bias.data(),
                                     .dx = out.dx.data()});
  return out;
}

TEST(BiasActivation, ErrorsAreRelative) {
  at_every_cpu_level([] {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      // Half a unit in the last place of bfloat16, and a fortieth of that.
      const double bound = dtype == kFloat32 ? 4e-6 : 0x1.06p-8;
      Array x(dtype, 1301);
      for (int64_t i = 0; i < x.size(); ++i) {
        x.set(i, (i - 650) * 0.01);
      }
      for (const Activation f : kAll) {
        const Both got = of_values(f, x);
        for (int64_t i = 0; i < x.size(); ++i) {
          ASSERT_NEAR(got.y[i], value(f, x[i]), bound * std::abs(value(f, x[i])) + 1e-30)
              << static_cast<int>(f) << " of " << x[i] << " in " << name_of(dtype);
        }
      }
    }
  });
}

TEST(BiasActivation, FarEndsAndNaN) {
  at_every_cpu_level([] {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const DType dtype : {kFloat32, kBFloat16}) {
      const Array x(dtype, Doubles{NAN, 0, 1e-40, -1e-40, 120, -120, 1e30, -1e30, infinity});
      for (const Activation f : kAll) {
        SCOPED_TRACE(::testing::Message() << static_cast<int>(f) << " in " << name_of(dtype));
        const Both got = of_values(f, x);
        EXPECT_TRUE(std::isnan(got.y[0]) && std::isnan(got.dx[0]));
        for (const int64_t i : {1, 2, 3}) {
          EXPECT_NEAR(got.y[i], x[i] / 2, 1e-40);
          EXPECT_NEAR(got.dx[i], 0.5, 1e-6);
        }
        for (const int64_t i : {4, 6, 8}) {
          EXPECT_EQ(got.y[i], x[i]);
          EXPECT_NEAR(got.dx[i], 1, 1e-6);
        }
        for (const int64_t i : {5, 7}) {
          EXPECT_NEAR(got.y[i], 0, 1e-30);
          EXPECT_NEAR(got.dx[i], 0, 1e-30);
        }
      }
    }
  });
}

TEST(BiasActivation, SameForAnyTeam) {
  at_every_cpu_level([] {
    const Array x = random_array(kFloat32, 1111 * 65, 1);
    const Array bias = random_array(kFloat32, 65, 2);
    expect_same_for_any_team([&] {
      Array dx(kFloat32, 1111 * 65);
      Array dbias(kFloat32, 65);
      kernels::bias_activation_backward({.rows = 1111,
                                         .n = 65,
                                         .dy = x.data(),
                                         .x = x.data(),
                                         .bias = bias.data(),
                                         .dx = dx.data(),
                                         .dbias = {dbias.data(), kFloat32, false}});
      return std::vector<Array>{dx, dbias};
    });
  });
}

}  // namespace
}  // namespace tapestry::testing
