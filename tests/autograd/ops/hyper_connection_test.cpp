#include "autograd/ops/transformer/hyper_connection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {
namespace hyper_connection_test {
namespace {

using Numbers = std::vector<double>;

Tensor input(const Shape& shape, uint64_t stream, double std = 1) {
  return normal(0, std, shape, kFloat64, RandomKey{7, stream, 0});
}

// What the header says, one token after the other, written without ops.
struct Plain {
  int64_t n = 0;
  int64_t h = 0;
  int64_t iterations = 20;
  double eps = 1e-6;

  // pre, post and res of one token.
  Numbers gates(const double* x,
                const Numbers& w,
                const Numbers& alpha,
                const Numbers& bias) const {
    const int64_t width = n * h;
    double squares = 0;
    for (int64_t k = 0; k < width; ++k) {
      squares += x[k] * x[k];
    }
    const double rms = std::sqrt(squares / static_cast<double>(width) + eps);
    Numbers z(bias);
    for (int64_t j = 0; j < std::ssize(z); ++j) {
      double p = 0;
      for (int64_t k = 0; k < width; ++k) {
        p += w[static_cast<size_t>(j * width + k)] * (x[k] / rms);
      }
      z[static_cast<size_t>(j)] += p * alpha[static_cast<size_t>(std::min<int64_t>(j / n, 2))];
    }
    for (int64_t j = 0; j < 2 * n; ++j) {
      double& value = z[static_cast<size_t>(j)];
      value = (j < n ? 1 : 2) / (1 + std::exp(-value));
    }
    double* res = z.data() + 2 * n;
    for (int64_t i = 0; i < n; ++i) {
      const double largest = *std::max_element(res + i * n, res + (i + 1) * n);
      for (int64_t j = 0; j < n; ++j) {
        res[i * n + j] = std::exp(res[i * n + j] - largest);
      }
    }
    for (int64_t round = 0; round < iterations; ++round) {
      for (int64_t i = 0; i < n; ++i) {
        divide(res + i * n, 1);
      }
      for (int64_t j = 0; j < n; ++j) {
        divide(res + j, n);
      }
    }
    return z;
  }

  void divide(double* first, int64_t step) const {
    double sum = 1e-6;
    for (int64_t e = 0; e < n; ++e) {
      sum += first[e * step];
    }
    for (int64_t e = 0; e < n; ++e) {
      first[e * step] /= sum;
    }
  }
};

TEST(HyperConnection, IsTheFormula) {
  for (const auto& [n, h] : {std::pair<int64_t, int64_t>{4, 9}, {2, 1500}, {16, 3}, {1, 5}}) {
    const int64_t rows = 19;
    const int64_t m = n * (n + 2);
    const Plain plain = {.n = n, .h = h};
    const Tensor x = input({rows, n * h}, 1);
    const Tensor w = input({m, n * h}, 2, 0.3);
    const Tensor alpha = input({3}, 3);
    const Tensor bias = input({m}, 4);
    const Tensor out = input({rows, h}, 5);
    Numbers gates;
    Numbers read;
    Numbers written;
    const Numbers xs = x.to_vector<double>();
    const Numbers os = out.to_vector<double>();
    for (int64_t row = 0; row < rows; ++row) {
      const double* own = xs.data() + row * n * h;
      const Numbers g = plain.gates(own, w.to_vector<double>(), alpha.to_vector<double>(),
                                    bias.to_vector<double>());
      const auto gate = [&](int64_t j) { return g[static_cast<size_t>(j)]; };
      gates.insert(gates.end(), g.begin(), g.end());
      for (int64_t k = 0; k < h; ++k) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) {
          sum += gate(i) * own[i * h + k];
        }
        read.push_back(sum);
      }
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t k = 0; k < h; ++k) {
          double sum = gate(n + i) * os[static_cast<size_t>(row * h + k)];
          for (int64_t j = 0; j < n; ++j) {
            sum += gate(2 * n + i * n + j) * own[j * h + k];
          }
          written.push_back(sum);
        }
      }
    }
    for (const DType dtype : {kFloat64, kFloat32}) {
      const double bound = dtype == kFloat64 ? 1e-12 : 1e-5;
      const HyperConnectionReading made = hyper_connection_read(
          x.to(dtype), w.to(dtype), alpha.to(dtype), bias.to(dtype), {.streams = n});
      expect_close(made.gates, tensor(gates, {rows, m}), bound);
      expect_close(made.input, tensor(read, {rows, h}), bound);
      const Tensor y = hyper_connection_write(made.streams, out.to(dtype), made.gates, n);
      expect_close(y, tensor(written, {rows, n * h}), bound);
    }
  }
}

// Rows and columns of res sum to 1: what is mixed keeps its size.
TEST(HyperConnection, ResIsDoublyStochastic) {
  constexpr int64_t kStreams = 4;
  const Tensor gates =
      hyper_connection_read(input({33, 32}, 1), input({24, 32}, 2, 0.1), input({3}, 3),
                            input({24}, 4, 0.5), {.streams = kStreams, .iterations = 60})
          .gates;
  const Numbers all = gates.to_vector<double>();
  for (size_t row = 0; row < 33; ++row) {
    const double* res = all.data() + row * 24 + 8;
    for (int64_t i = 0; i < kStreams; ++i) {
      double across = 0;
      double down = 0;
      for (int64_t j = 0; j < kStreams; ++j) {
        across += res[i * kStreams + j];
        down += res[j * kStreams + i];
      }
      EXPECT_NEAR(across, 1, 1e-5);
      EXPECT_NEAR(down, 1, 1e-5);
    }
  }
}

TensorList leaves(const TensorList& tensors, DType dtype = kFloat64) {
  TensorList out;
  for (const Tensor& t : tensors) {
    out.push_back(t.detach().clone().to(dtype).set_requires_grad());
  }
  return out;
}

// Reading and writing as a layer does it, where gradients of the streams meet in one pass.
Tensor layer(const TensorList& in, bool fused) {
  const HyperConnectionOptions o = {.streams = 3, .iterations = 7, .eps = 1e-3};
  const HyperConnectionReading made =
      fused ? hyper_connection_read(in[0], in[1], in[2], in[3], o)
            : composed_hyper_connection_read(in[0], in[1], in[2], in[3], o);
  const Tensor block = mul(made.input, made.input);
  return fused ? hyper_connection_write(made.streams, block, made.gates, 3)
               : composed_hyper_connection_write(made.streams, block, made.gates, 3);
}

TEST(HyperConnection, FusedFormsEqualTheirTwins) {
  const TensorList in = {input({35, 3 * 1030}, 1), input({15, 3 * 1030}, 2, 0.01), input({3}, 3),
                         input({15}, 4)};
  const Tensor dy = input({35, 3 * 1030}, 5);
  const TensorList a = leaves(in);
  const TensorList b = leaves(in);
  const Tensor y = layer(a, true);
  const Tensor twin = layer(b, false);
  expect_close(y, twin, 1e-13);
  const TensorList da = grad(y, a, dy);
  const TensorList db = grad(twin, b, dy);
  for (size_t i = 0; i < in.size(); ++i) {
    expect_close(da[i], db[i], 1e-12);
  }
}

// The parts that nobody asks for are left out, and those that are have the same bits.
TEST(HyperConnection, GivesTheGradientsThatAreWanted) {
  const TensorList in = {input({20, 12}, 1), input({15, 12}, 2), input({3}, 3), input({15}, 4)};
  const Tensor dy = input({20, 12}, 5);
  const TensorList all = leaves(in);
  const TensorList expected = grad(layer(all, true), all, dy);
  for (size_t wanted = 0; wanted < in.size(); ++wanted) {
    TensorList own = in;
    own[wanted] = own[wanted].detach().clone().set_requires_grad();
    const TensorList alone = grad(layer(own, true), {own[wanted]}, dy);
    EXPECT_EQ(alone[0].to_vector<double>(), expected[wanted].to_vector<double>()) << wanted;
  }
}

// A token's numbers have the same bits alone and among others, as a text that grows needs it.
TEST(HyperConnection, TokensDoNotSeeEachOther) {
  const Tensor x = input({37, 4 * 130}, 1).to(kBFloat16);
  const Tensor w = input({24, 4 * 130}, 2, 0.05).to(kFloat32);
  const Tensor alpha = input({3}, 3).to(kFloat32);
  const Tensor bias = input({24}, 4).to(kFloat32);
  const HyperConnectionReading all = hyper_connection_read(x, w, alpha, bias);
  for (int64_t row = 0; row < 37; ++row) {
    const HyperConnectionReading one =
        hyper_connection_read(slice(x, 0, row, row + 1), w, alpha, bias);
    EXPECT_EQ(one.gates.to_vector<double>(), slice(all.gates, 0, row, row + 1).to_vector<double>());
    EXPECT_EQ(one.input.to_vector<double>(), slice(all.input, 0, row, row + 1).to_vector<double>());
  }
}

}  // namespace
}  // namespace hyper_connection_test
}  // namespace tapestry
