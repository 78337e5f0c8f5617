#include "autograd/ops/transformer/gated_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {
namespace gated_norm_test {
namespace {

constexpr GatedNormOrder kOrders[] = {GatedNormOrder::kNormThenGate, GatedNormOrder::kGateThenNorm};

Tensor input(const Shape& shape, uint64_t stream, DType dtype = kFloat64) {
  return normal(0.5, 2, shape, kFloat64, RandomKey{5, stream, 0}).to(dtype);
}

TensorList leaves(const TensorList& tensors) {
  TensorList out;
  for (const Tensor& t : tensors) {
    out.push_back(t.detach().clone().set_requires_grad());
  }
  return out;
}

double silu_of(double x) { return x / (1 + std::exp(-x)); }

TEST(GatedNorm, IsTheFormula) {
  const Tensor x = input({5, 12}, 1);
  const Tensor z = input({5, 12}, 2);
  for (const GatedNormOrder order : kOrders) {
    for (const bool shared : {false, true}) {
      const Tensor gain = input({shared ? 4 : 12}, 3);
      const Tensor y = gated_rms_norm(x, z, gain, {.eps = 1e-3, .group_size = 4, .order = order});
      const std::vector<double> xs = x.to_vector<double>();
      const std::vector<double> zs = z.to_vector<double>();
      const std::vector<double> gains = gain.to_vector<double>();
      std::vector<double> expected(60);
      for (size_t first = 0; first < 60; first += 4) {
        double sum = 0;
        for (size_t i = first; i < first + 4; ++i) {
          const double gate = order == GatedNormOrder::kGateThenNorm ? silu_of(zs[i]) : 1;
          sum += xs[i] * gate * xs[i] * gate;
        }
        for (size_t i = first; i < first + 4; ++i) {
          expected[i] =
              xs[i] * silu_of(zs[i]) / std::sqrt(sum / 4 + 1e-3) * gains[shared ? i % 4 : i % 12];
        }
      }
      expect_close(y, tensor(expected, {5, 12}), 1e-14);
    }
  }
}

TEST(GatedNorm, FusedFormsEqualTheirTwins) {
  for (const GatedNormOrder order : kOrders) {
    for (const int64_t gains : {5, 20}) {
      const GatedNormOptions o = {.eps = 1e-3, .group_size = 5, .order = order};
      const TensorList in = {input({70, 20}, 1), input({70, 20}, 2), input({gains}, 3)};
      const Tensor dy = input({70, 20}, 4);
      const TensorList a = leaves(in);
      const TensorList b = leaves(in);
      const Tensor y = gated_rms_norm(a[0], a[1], a[2], o);
      const Tensor twin = composed_gated_rms_norm(b[0], b[1], b[2], o);
      expect_close(y, twin, 1e-14);
      const TensorList da = grad(y, a, dy);
      const TensorList db = grad(twin, b, dy);
      for (size_t i = 0; i < 3; ++i) {
        expect_close(da[i], db[i], 1e-13);
      }
      const Tensor squares = gated_sum_of_squares(a[0], a[1], o);
      const Tensor twin_squares = composed_gated_sum_of_squares(b[0], b[1], o);
      expect_close(squares, twin_squares, 1e-14);
      const Tensor dsquares = input({70, 4}, 5);
      const TensorList sa = grad(squares, {a[0], a[1]}, dsquares, {}, true);
      const TensorList sb = grad(twin_squares, {b[0], b[1]}, dsquares, {}, true);
      expect_close(sa[0], sb[0], 1e-13);
      EXPECT_EQ(sa[1].defined(), order == GatedNormOrder::kGateThenNorm);
      if (sa[1].defined()) {
        expect_close(sa[1], sb[1], 1e-13);
      }
    }
  }
}

// As tensor-parallel ranks do it: each has some columns of the group, and the sums of squares are
// added up in between.
TEST(GatedNorm, PartsOfAGroupAreLikeTheWhole) {
  for (const GatedNormOrder order : kOrders) {
    for (const DType dtype : {kFloat64, kFloat32}) {
      const double bound = dtype == kFloat64 ? 1e-14 : 1e-6;
      const GatedNormOptions o = {.eps = 1e-3, .order = order};
      const TensorList in = {input({9, 30}, 1, dtype), input({9, 30}, 2, dtype),
                             input({30}, 3, dtype)};
      const Tensor dy = input({9, 30}, 4, dtype);
      const TensorList whole = leaves(in);
      const Tensor y = gated_rms_norm(whole[0], whole[1], whole[2], o);
      const TensorList expected = grad(y, whole, dy);
      const TensorList split = leaves(in);
      const auto part = [](const Tensor& t, int64_t begin, int64_t end) {
        return slice(t, -1, begin, end);
      };
      const Tensor squares =
          gated_sum_of_squares(part(split[0], 0, 12), part(split[1], 0, 12), o) +
          gated_sum_of_squares(part(split[0], 12, 30), part(split[1], 12, 30), o);
      GatedNormOptions given = o;
      given.mean_squares = squares / 30;
      const auto norm = [&](int64_t begin, int64_t end) {
        return gated_rms_norm(part(split[0], begin, end), part(split[1], begin, end),
                              part(split[2], begin, end), given);
      };
      const Tensor joined = cat({norm(0, 12), norm(12, 30)}, -1);
      expect_close(joined, y, bound);
      const TensorList actual = grad(joined, split, dy);
      for (size_t i = 0; i < 3; ++i) {
        expect_close(actual[i], expected[i], 10 * bound);
      }
    }
  }
}

TEST(GatedNorm, DtypesMix) {
  for (const GatedNormOrder order : kOrders) {
    for (const DType x_dtype : {kFloat32, kBFloat16, kFloat16}) {
      for (const DType z_dtype : {kFloat32, kBFloat16, kFloat16}) {
        for (const DType y_dtype : {kFloat32, kBFloat16}) {
          GatedNormOptions o = {.group_size = 20, .order = order};
          const TensorList in = leaves(
              {input({6, 40}, 1, x_dtype), input({6, 40}, 2, z_dtype), input({20}, 3, kFloat32)});
          const Tensor dy = input({6, 40}, 4, y_dtype);
          TensorList exact;
          for (const Tensor& t : in) {
            exact.push_back(t.detach().to(kFloat64).set_requires_grad());
          }
          const Tensor twin = gated_rms_norm(exact[0], exact[1], exact[2], o);
          const TensorList expected = grad(twin, exact, dy.to(kFloat64));
          o.dtype = y_dtype;
          const Tensor y = gated_rms_norm(in[0], in[1], in[2], o);
          EXPECT_EQ(y.dtype(), y_dtype);
          const TensorList actual = grad(y, in, dy);
          const auto bound = [](DType dtype) {
            return 2e-6 + (dtype == kBFloat16 ? 0x1p-8 : dtype == kFloat16 ? 0x1p-11 : 0);
          };
          expect_close(y, twin, bound(y_dtype));
          expect_close(actual[0], expected[0], bound(x_dtype));
          expect_close(actual[1], expected[1], bound(z_dtype));
          expect_close(actual[2], expected[2], bound(kFloat32));
        }
      }
    }
  }
}

TEST(GatedNorm, ReadsColumnsOfAWiderMatrix) {
  for (const GatedNormOrder order : kOrders) {
    const GatedNormOptions o = {.group_size = 8, .order = order};
    const Tensor wide = input({2, 7, 50}, 1, kFloat32).set_requires_grad();
    const Tensor x = slice(wide, -1, 1, 25);
    const Tensor z = slice(wide, -1, 26, 50);
    const Tensor gain = input({24}, 2, kFloat32);
    const Tensor y = gated_rms_norm(x, z, gain, o);
    const Tensor copied = gated_rms_norm(x.detach().clone(), z.detach().clone(), gain, o);
    EXPECT_EQ(y.to_vector<float>(), copied.to_vector<float>());
    const Tensor dwide = grad(y, {wide}, ones(y.shape()))[0];
    EXPECT_EQ(amax(abs(dwide.select(-1, 0))).item(), 0);
    EXPECT_EQ(amax(abs(dwide.select(-1, 25))).item(), 0);
  }
}

TEST(GatedNorm, LargeGatesStayFinite) {
  const Tensor x = ones({1, 6}).set_requires_grad();
  const std::vector<float> values = {-1e30F, -200, -88, 88, 200, 1e15F};
  for (const GatedNormOrder order : kOrders) {
    const Tensor z = tensor(values, {1, 6}).set_requires_grad();
    const Tensor y = gated_rms_norm(x, z, {}, {.group_size = 1, .order = order});
    const TensorList g = grad(y, {x, z}, ones({1, 6}));
    for (const Tensor& t : {y, g[0], g[1]}) {
      EXPECT_TRUE(std::isfinite(sum(t).item()));
    }
  }
}

TEST(GatedNorm, TeamsGiveTheSameBits) {
  const auto run = [](int threads, GatedNormOrder order) {
    const int before = num_threads();
    set_num_threads(threads);
    const TensorList in = leaves(
        {input({300, 96}, 1, kFloat32), input({300, 96}, 2, kFloat32), input({32}, 3, kFloat32)});
    const Tensor y = gated_rms_norm(in[0], in[1], in[2], {.group_size = 32, .order = order});
    TensorList out = grad(y, in, input({300, 96}, 4, kFloat32));
    out.push_back(y.detach());
    set_num_threads(before);
    return out;
  };
  for (const GatedNormOrder order : kOrders) {
    const TensorList one = run(1, order);
    for (const int threads : {2, 3}) {
      const TensorList more = run(threads, order);
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_EQ(one[i].to_vector<float>(), more[i].to_vector<float>());
      }
    }
  }
}

}  // namespace
}  // namespace gated_norm_test
}  // namespace tapestry
