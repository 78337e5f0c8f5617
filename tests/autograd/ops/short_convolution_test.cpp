#include "autograd/ops/transformer/short_convolution.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "autograd/kernels/machine/team.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/inplace.h"
#include "autograd/ops/random.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/attention.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {
namespace {

namespace convolution_test {

Tensor numbers(const Shape& shape, uint64_t stream) {
  return normal(0, 1, shape, kFloat64, RandomKey{13, stream, 0});
}

struct Inputs {
  Tensor x, weight, bias, previous, dy;
};

// Float64 values that `dtype` holds exactly.
Inputs inputs_of(int64_t batch, int64_t tokens, int64_t channels, int64_t taps, DType dtype) {
  const auto make = [&](const Shape& shape, uint64_t stream) {
    return numbers(shape, stream).to(dtype).to(kFloat64);
  };
  return {make({batch, tokens, channels}, 1), make({channels, taps}, 2), make({channels}, 3),
          make({batch, taps - 1, channels}, 4), make({batch, tokens, channels}, 5)};
}

struct Outcome {
  Tensor y, dx, dweight, dbias, dprevious;
};

// Element by element, in float64.
Outcome reference(const Inputs& in, const ShortConvolutionOptions& o) {
  const int64_t batch = in.x.size(0);
  const int64_t tokens = in.x.size(1);
  const int64_t channels = in.x.size(2);
  const int64_t taps = in.weight.size(1);
  Outcome r = {zeros(in.x.shape(), kFloat64), zeros(in.x.shape(), kFloat64),
               zeros(in.weight.shape(), kFloat64), zeros(in.bias.shape(), kFloat64),
               zeros(in.previous.shape(), kFloat64)};
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t c = 0; c < channels; ++c) {
      const auto at = [&](const Tensor& rows, const Tensor& before, int64_t t) -> double& {
        return t >= 0 ? rows.data<double>()[(b * tokens + t) * channels + c]
                      : before.data<double>()[(b * (taps - 1) + taps - 1 + t) * channels + c];
      };
      for (int64_t t = 0; t < tokens; ++t) {
        const auto sees = [&](int64_t i) {
          if (!o.document_starts.defined()) {
            return true;
          }
          const int64_t row = o.document_starts.size(0) == 1 ? 0 : b;
          const int64_t start =
              o.document_starts
                  .data<int32_t>()[row * o.document_starts.size(1) + o.first_position + t];
          return start == 0 || o.first_position + t - taps + 1 + i >= start;
        };
        double z = in.bias.data<double>()[c];
        for (int64_t i = 0; i < taps; ++i) {
          z += sees(i) ? in.weight.data<double>()[c * taps + i] *
                             at(in.x, in.previous, t - taps + 1 + i)
                       : 0;
        }
        const double s = 1 / (1 + std::exp(-z));
        at(r.y, r.y, t) = o.silu ? z * s : z;
        const double dz = at(in.dy, in.dy, t) * (o.silu ? s * (1 + z * (1 - s)) : 1);
        r.dbias.data<double>()[c] += dz;
        for (int64_t i = 0; i < taps; ++i) {
          if (sees(i)) {
            r.dweight.data<double>()[c * taps + i] += dz * at(in.x, in.previous, t - taps + 1 + i);
            at(r.dx, r.dprevious, t - taps + 1 + i) += dz * in.weight.data<double>()[c * taps + i];
          }
        }
      }
    }
  }
  return r;
}

Outcome run(const Inputs& in, ShortConvolutionOptions o, DType dtype) {
  const auto leaf = [&](const Tensor& x) {
    return x.to(dtype).clone().detach().set_requires_grad();
  };
  const Tensor x = leaf(in.x);
  const Tensor weight = leaf(in.weight);
  o.bias = leaf(in.bias);
  o.previous = leaf(in.previous);
  const Tensor y = short_convolution(x, weight, o);
  const TensorList d = grad(y, {x, weight, o.bias, o.previous}, in.dy.to(dtype));
  return {y.detach(), d[0], d[1], d[2], d[3]};
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (a.numel() == 0 || std::memcmp(a.contiguous().raw(), b.contiguous().raw(),
                                        static_cast<size_t>(a.numel() * size_of(a.dtype()))) == 0);
}

TEST(ShortConvolution, AgreesWithTheFormula) {
  for (const DType dtype : {kFloat64, kFloat32, kBFloat16, kFloat16}) {
    // Sums of as many products as there are tokens; results are rounded once.
    const double sums = dtype == kFloat64 ? 1e-13 : 64 * 0x1p-24;
    const double rounding = dtype == kBFloat16 ? 0x1p-8 : dtype == kFloat16 ? 0x1p-11 : 0;
    for (const int64_t taps : {1, 2, 3, 4, 7}) {
      for (const bool silu : {false, true}) {
        for (const int64_t tokens : {1, 3, 150}) {
          SCOPED_TRACE(concat(name_of(dtype), ", ", taps, " taps, ", tokens, " tokens"));
          const Inputs in = inputs_of(2, tokens, 300, taps, dtype);
          std::vector<ShortConvolutionOptions> all = {{.silu = silu}};
          if (tokens > 100) {
            all.push_back({.silu = silu,
                           .document_starts = document_starts(
                               std::vector<std::vector<int64_t>>{{1, 3, 40, 149}, {16, 64}}, 150)});
            all.push_back({.silu = silu,
                           .document_starts = document_starts(
                               std::vector<std::vector<int64_t>>{{7, 10, 11, 100}}, 160),
                           .first_position = 10});
          }
          for (const ShortConvolutionOptions& o : all) {
            const Outcome expected = reference(in, o);
            const Outcome actual = run(in, o, dtype);
            expect_close(actual.y, expected.y, sums + rounding);
            expect_close(actual.dx, expected.dx, sums + rounding);
            expect_close(actual.dweight, expected.dweight, sums + rounding);
            expect_close(actual.dbias, expected.dbias, sums + rounding);
            expect_close(actual.dprevious, expected.dprevious, sums + rounding);
          }
        }
      }
    }
  }
}

TEST(ShortConvolution, BitsDoNotDependOnThreads) {
  const Inputs in = inputs_of(2, 700, 300, 4, kFloat32);
  const int before = num_threads();
  std::vector<Outcome> outcomes;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    outcomes.push_back(run(in, {.silu = true}, kFloat32));
  }
  set_num_threads(before);
  for (const Outcome& other : {outcomes[1], outcomes[2]}) {
    EXPECT_TRUE(same_bits(other.y, outcomes[0].y));
    EXPECT_TRUE(same_bits(other.dx, outcomes[0].dx));
    EXPECT_TRUE(same_bits(other.dweight, outcomes[0].dweight));
    EXPECT_TRUE(same_bits(other.dbias, outcomes[0].dbias));
    EXPECT_TRUE(same_bits(other.dprevious, outcomes[0].dprevious));
  }
}

TEST(ShortConvolution, ColumnsOfAMatrixAreNotCopied) {
  const NoGradGuard no_grad;
  const Tensor wide = numbers({2, 500, 900}, 1).to(kFloat32);
  const Tensor weight = numbers({300, 4}, 2).to(kFloat32);
  const Tensor columns = wide.slice(2, 300, 600);
  const Tensor expected = short_convolution(columns.clone(), weight, {.silu = true});
  const int64_t before = memory_stats().current_bytes;
  RankContext::current().allocator().reset_peak();
  const Tensor y = short_convolution(columns, weight, {.silu = true});
  // The result, and less than another one of working memory.
  EXPECT_LT(memory_stats().peak_bytes - before, 2 * y.numel() * 4);
  EXPECT_TRUE(same_bits(y, expected));
}

TEST(ShortConvolution, GradientsOfParametersGoIntoMainGrad) {
  const Inputs in = inputs_of(1, 50, 20, 4, kFloat32);
  const Outcome plain = run(in, {.silu = true}, kFloat32);
  const Tensor weight = in.weight.to(kFloat32).set_requires_grad();
  const Tensor bias = in.bias.to(kFloat32).set_requires_grad();
  weight.set_main_grad(full(weight.shape(), 1.0));
  bias.set_main_grad(full(bias.shape(), 2.0));
  short_convolution(in.x.to(kFloat32), weight,
                    {.bias = bias, .silu = true, .previous = in.previous.to(kFloat32)})
      .backward(in.dy.to(kFloat32));
  expect_close(weight.main_grad(), add(plain.dweight, 1.0), 64 * 0x1p-24);
  expect_close(bias.main_grad(), add(plain.dbias, 2.0), 64 * 0x1p-24);
}

// Tokens one by one, and in pieces whose last inputs are handed on, are one pass: to the bit.
TEST(ShortConvolution, StepsAndPiecesAreOnePass) {
  const NoGradGuard no_grad;
  for (const DType dtype : {kFloat32, kBFloat16}) {
    const Inputs in = inputs_of(2, 40, 300, 4, dtype);
    const Tensor x = in.x.to(dtype);
    const Tensor weight = in.weight.to(dtype);
    ShortConvolutionOptions o = {.bias = in.bias.to(dtype), .silu = true};
    o.previous = in.previous.to(dtype);
    const Tensor whole = short_convolution(x, weight, o);
    for (const int64_t length : {1, 2, 3, 17}) {
      TensorList parts;
      Tensor inputs = in.previous.to(dtype);
      for (int64_t begin = 0; begin < 40; begin += length) {
        const Tensor part = x.slice(1, begin, std::min<int64_t>(begin + length, 40));
        o.previous = inputs.slice(1, inputs.size(1) - 3, inputs.size(1));
        parts.push_back(short_convolution(part, weight, o));
        inputs = cat({inputs, part}, 1);
      }
      EXPECT_TRUE(same_bits(cat(parts, 1), whole)) << length;
    }
    for (const DType kept : {dtype, kFloat32}) {
      const Tensor state = full({3, 3, 300}, 5.0, kept);
      const std::vector<int64_t> slots = {2, 0};
      for (int64_t b = 0; b < 2; ++b) {
        copy_(state.select(0, slots[b]), in.previous.to(kept).select(0, b));
      }
      TensorList steps;
      for (int64_t t = 0; t < 40; ++t) {
        steps.push_back(short_convolution_step(x.select(1, t), weight, o.bias, true, state, slots));
      }
      EXPECT_TRUE(same_bits(stack(steps, 1), whole));
      expect_close(state.select(0, 2), x.slice(1, 37, 40).select(0, 0).to(kept), 0);
      expect_close(state.select(0, 1), full({3, 300}, 5.0), 0);
    }
  }
}

}  // namespace convolution_test
}  // namespace
}  // namespace tapestry
