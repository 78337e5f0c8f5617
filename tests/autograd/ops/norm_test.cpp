#include "autograd/ops/norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {
namespace norm_test {
namespace {

Tensor input(const Shape& shape, uint64_t stream, DType dtype = kFloat64) {
  return normal(0.5, 2, shape, kFloat64, RandomKey{3, stream, 0}).to(dtype);
}

TensorList leaves(const TensorList& tensors) {
  TensorList out;
  for (const Tensor& t : tensors) {
    out.push_back(t.detach().clone().set_requires_grad());
  }
  return out;
}

TEST(Norm, FusedFormsEqualTheirTwins) {
  const TensorList in = {input({4, 3, 9}, 1), input({9}, 2), input({9}, 3)};
  const Tensor dy = input({4, 3, 9}, 4);
  const TensorList a = leaves(in);
  const TensorList b = leaves(in);
  const Tensor layer = layer_norm(a[0], a[1], a[2], 1e-3);
  const Tensor layer_twin = composed_layer_norm(b[0], b[1], b[2], 1e-3);
  expect_close(layer, layer_twin, 1e-13);
  const TensorList da = grad(layer, a, dy);
  const TensorList db = grad(layer_twin, b, dy);
  for (size_t i = 0; i < 3; ++i) {
    expect_close(da[i], db[i], 1e-13);
  }
  const Tensor rms = rms_norm(a[0], a[1], 1e-3);
  const Tensor rms_twin = composed_rms_norm(b[0], b[1], 1e-3);
  expect_close(rms, rms_twin, 1e-13);
  const TensorList dr = grad(rms, {a[0], a[1]}, dy);
  const TensorList ds = grad(rms_twin, {b[0], b[1]}, dy);
  expect_close(dr[0], ds[0], 1e-13);
  expect_close(dr[1], ds[1], 1e-13);
}

TEST(Norm, ARowOfOneElementHasNoGradient) {
  // Whatever x is, layer_norm gives the bias.
  const TensorList in = leaves({input({70, 1}, 1, kFloat32), input({1}, 2, kFloat32), zeros({1})});
  const Tensor y = layer_norm(in[0], in[1], in[2]);
  const Tensor dx = grad(y, {in[0]}, input({70, 1}, 4, kFloat32))[0];
  EXPECT_EQ(amax(abs(y)).item(), 0);
  EXPECT_EQ(amax(abs(dx)).item(), 0);
}

TEST(Norm, RowsHaveMeanZeroAndVarianceOne) {
  const Tensor y = layer_norm(input({5, 400}, 1), {}, {}, 0);
  expect_close(mean(y, {-1}), zeros({5}, kFloat64), 1e-14);
  expect_close(mean(square(y), {-1}), ones({5}, kFloat64), 1e-13);
  expect_close(mean(square(rms_norm(input({5, 400}, 1), {}, 0)), {-1}), ones({5}, kFloat64), 1e-13);
}

TEST(Norm, MeanFarFromZeroLosesNothing) {
  const Tensor x = add(input({3, 16}, 1), 500).to(kFloat32);
  expect_close(layer_norm(x, {}, {}), layer_norm(x.to(kFloat64), {}, {}), 1e-5);
}

TEST(Norm, ConstantRowsGiveTheBias) {
  const Tensor bias = input({4}, 1);
  expect_close(layer_norm(full({2, 4}, 3, kFloat64), {}, bias), bias.expand({2, 4}), 1e-14);
  expect_close(rms_norm(zeros({2, 4}), {}), zeros({2, 4}), 0);
}

TEST(Norm, Bfloat16InputWithFloat32Parameters) {
  const TensorList in =
      leaves({input({6, 32}, 1, kBFloat16), input({32}, 2, kFloat32), input({32}, 3, kFloat32)});
  const Tensor y = layer_norm(in[0], in[1], in[2]);
  EXPECT_EQ(y.dtype(), kBFloat16);
  const TensorList d = grad(y, in, ones({6, 32}, kBFloat16));
  EXPECT_EQ(d[0].dtype(), kBFloat16);
  EXPECT_EQ(d[1].dtype(), kFloat32);
  EXPECT_EQ(d[2].dtype(), kFloat32);
  const Tensor exact = layer_norm(in[0].to(kFloat64), in[1].to(kFloat64), in[2].to(kFloat64));
  expect_close(y, exact, 1.0 / 256);
  // The weight keeps its own dtype when everything is 16 bits, too.
  const TensorList half = leaves({input({6, 32}, 1, kBFloat16), input({32}, 2, kBFloat16)});
  EXPECT_EQ(grad(rms_norm(half[0], half[1]), half, ones({6, 32}, kBFloat16))[1].dtype(), kBFloat16);
}

TEST(Norm, MixedParametersMeetInFloat32) {
  const TensorList in =
      leaves({input({6, 8}, 1, kBFloat16), input({8}, 2, kFloat32), input({8}, 3, kBFloat16)});
  const TensorList d = grad(layer_norm(in[0], in[1], in[2]), in, ones({6, 8}, kBFloat16));
  EXPECT_EQ(d[1].dtype(), kFloat32);
  EXPECT_EQ(d[2].dtype(), kBFloat16);
  expect_close(d[2], full({8}, 6, kBFloat16), 0);
  // float64 x with float32 parameters is computed in float64.
  const TensorList wide = leaves({input({6, 8}, 1), input({8}, 2, kFloat32)});
  const Tensor y = rms_norm(wide[0], wide[1]);
  expect_close(y, rms_norm(wide[0], wide[1].to(kFloat64)), 0);
  EXPECT_EQ(grad(y, wide, ones({6, 8}, kFloat64))[1].dtype(), kFloat32);
}

// Both results and all gradients of the fused form and of its twin.
void expect_add_norm_equals_its_twin(const TensorList& in, bool centered, double bound) {
  const auto results_of = [&](bool fused, const TensorList& at) {
    const AddNormOptions options{.eps = 1e-3, .x_bias = at[4]};
    const AddNorm r =
        centered ? (fused ? add_layer_norm : composed_add_layer_norm)(at[0], at[1], at[2], at[3],
                                                                      options)
                 : (fused ? add_rms_norm : composed_add_rms_norm)(at[0], at[1], at[2], options);
    return TensorList{r.sum, r.normed};
  };
  const TensorList a = leaves(in);
  const TensorList b = leaves(in);
  const TensorList fused = results_of(true, a);
  const TensorList twin = results_of(false, b);
  const TensorList dys = {input(in[1].shape(), 20, fused[0].dtype()),
                          input(in[1].shape(), 21, fused[1].dtype())};
  const TensorList da = grad(fused, a, dys, {}, true);
  const TensorList db = grad(twin, b, dys, {}, true);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(fused[i].dtype(), twin[i].dtype());
    expect_close(fused[i], twin[i], bound);
  }
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(da[i].defined(), db[i].defined());
    if (da[i].defined()) {
      EXPECT_EQ(da[i].dtype(), in[i].dtype());
      expect_close(da[i], db[i], bound);
    }
  }
}

TEST(AddNorm, FusedFormsEqualTheirTwins) {
  for (const bool centered : {true, false}) {
    expect_add_norm_equals_its_twin(
        {input({4, 3, 9}, 1), input({4, 3, 9}, 2), input({9}, 3), input({9}, 4), input({9}, 5)},
        centered, 1e-13);
    // A float32 stream with bfloat16 branches, and everything in bfloat16 but the parameters.
    expect_add_norm_equals_its_twin(
        {input({40, 64}, 1, kBFloat16), input({40, 64}, 2, kFloat32), input({64}, 3, kFloat32),
         input({64}, 4, kFloat32), input({64}, 5, kFloat32)},
        centered, 0.02);
    expect_add_norm_equals_its_twin(
        {input({40, 64}, 1, kBFloat16), input({40, 64}, 2, kBFloat16), input({64}, 3, kFloat32),
         input({64}, 4, kFloat32), input({64}, 5, kBFloat16)},
        centered, 0.02);
  }
}

TEST(AddNorm, OneTensorIsTheGradientOfBothTerms) {
  const TensorList in = leaves({input({6, 8}, 1), input({6, 8}, 2), input({8}, 3)});
  const AddNorm r = add_rms_norm(in[0], in[1], in[2]);
  const TensorList results = {r.sum, r.normed};
  const TensorList dys = {input({6, 8}, 4), input({6, 8}, 5)};
  const TensorList d = grad(results, in, dys);
  EXPECT_EQ(d[0].raw(), d[1].raw());
}

TEST(AddNorm, TheSumHasAGradientOnlyOfItsTerms) {
  const Tensor x = full({2, 3}, 2.0);
  const Tensor weight = full({3}, 1.5).set_requires_grad();
  for (const auto norm : {&add_rms_norm, &composed_add_rms_norm}) {
    const AddNorm r = norm(x, x, weight, {});
    EXPECT_FALSE(r.sum.requires_grad());
    sum(r.normed).backward();
    const Tensor wanting = full({3}, 1.0).set_requires_grad();
    EXPECT_TRUE(norm(x, x, weight, {.x_bias = wanting}).sum.requires_grad());
  }
  expect_close(weight.grad(), full({3}, 4.0), 1e-5);
}

TEST(AddNorm, KeepsTheSumAndARowOfStatistics) {
  const Tensor x = zeros({256, 64}).set_requires_grad();
  const Tensor residual = zeros({256, 64}).set_requires_grad();
  const int64_t before = memory_stats().current_bytes;
  Tensor normed;
  {
    AddNorm r = add_rms_norm(x, residual, {});
    normed = r.normed;
  }
  EXPECT_LE(
      memory_stats().current_bytes - before,
      2 * CachingAllocator::rounded_size(256 * 64 * 4) + CachingAllocator::rounded_size(256 * 4));
}

TEST(AddNorm, GradientsOfParametersGoStraightIntoMainGrad) {
  const TensorList in =
      leaves({input({40, 16}, 1, kBFloat16), input({40, 16}, 2, kFloat32), input({16}, 3, kFloat32),
              input({16}, 4, kFloat32), input({16}, 5, kFloat32)});
  const auto run = [&] {
    const AddNorm r = add_layer_norm(in[0], in[1], in[2], in[3], {.x_bias = in[4]});
    backward(std::vector<Tensor>{sum(r.sum), sum(square(r.normed.to(kFloat32)))});
  };
  run();
  TensorList expected;
  for (size_t i = 2; i < 5; ++i) {
    expected.push_back(in[i].grad().clone());
    in[i].set_main_grad(ones({16}));
  }
  run();
  for (size_t i = 2; i < 5; ++i) {
    expect_close(sub(in[i].main_grad(), 1), expected[i - 2], 1e-5);
  }
}

TEST(Norm, TheResultMayHaveAnotherDtype) {
  const Tensor x = input({6, 8}, 1, kFloat32).set_requires_grad();
  const Tensor y = layer_norm(x, {}, {}, 1e-5, kBFloat16);
  EXPECT_EQ(y.dtype(), kBFloat16);
  expect_close(y, layer_norm(x, {}, {}), 1.0 / 256);
  const Tensor dy = input({6, 8}, 2, kBFloat16);
  const Tensor dx = grad(y, {x}, dy)[0];
  EXPECT_EQ(dx.dtype(), kFloat32);
  expect_close(dx, grad(layer_norm(x, {}, {}), {x}, dy.to(kFloat32))[0], 1e-6);
}

TEST(Norm, ParametersOfAnotherDtypeAreRefused) {
  EXPECT_THROW(rms_norm(zeros({2, 4}), zeros({4}, kFloat64)), TypeError);
  EXPECT_THROW(rms_norm(zeros({2, 4}), zeros({4}, kBFloat16)), TypeError);
  EXPECT_THROW(layer_norm(zeros({2, 4}, kBFloat16), {}, zeros({4}, kFloat16)), TypeError);
}

TEST(Norm, KeepsTwoNumbersPerRow) {
  const Tensor x = zeros({256, 64}).set_requires_grad();
  const Tensor weight = ones({64}).set_requires_grad();
  const int64_t before = memory_stats().current_bytes;
  const Tensor y = layer_norm(x, weight, {});
  const int64_t kept = memory_stats().current_bytes - before;
  EXPECT_LE(kept, CachingAllocator::rounded_size(256 * 64 * 4) +
                      2 * CachingAllocator::rounded_size(256 * 4));
}

}  // namespace
}  // namespace norm_test
}  // namespace tapestry
