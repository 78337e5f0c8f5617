// Exact mode: rows too long for one vector, of sizes that leave a rest, have the same bits at every
// CPU level that fuses multiply-adds. The samples of op_suite_test.cpp are short rows mostly.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

struct LevelCase {
  std::string name;
  std::function<Tensor(const Tensor& x, const Tensor& y, const Tensor& w)> function;
};

std::vector<LevelCase> level_cases() {
  using T = const Tensor&;
  return {
      {"sum", [](T x, T, T) { return sum(x, {-1}); }},
      {"sum over columns", [](T x, T, T) { return sum(x, {0}); }},
      {"mean of squares", [](T x, T, T) { return mean(square(x), {-1}); }},
      {"softmax", [](T x, T, T) { return softmax(x, -1); }},
      {"log_softmax", [](T x, T, T) { return log_softmax(x, -1); }},
      {"softmax of columns", [](T x, T, T) { return softmax(x, 0); }},
      {"logsumexp", [](T x, T, T) { return logsumexp(x, {-1}); }},
      {"rms_norm", [](T x, T, T w) { return rms_norm(x, w); }},
      {"layer_norm", [](T x, T, T w) { return layer_norm(x, w, w); }},
      {"add_rms_norm",
       [](T x, T y, T w) {
         const AddNorm out = add_rms_norm(x, y, w);
         return out.sum * out.normed;
       }},
      {"gated_rms_norm", [](T x, T y, T w) { return gated_rms_norm(x, y, w); }},
      {"swiglu", [](T x, T y, T) { return swiglu(x, y); }},
      {"bias_gelu", [](T x, T, T w) { return bias_gelu(x, w); }},
      {"bias_gelu_tanh", [](T x, T, T w) { return bias_gelu_tanh(x, w); }},
      {"bias_silu", [](T x, T, T w) { return bias_silu(x, w); }},
      {"gelu", [](T x, T, T) { return gelu(x); }},
      {"silu", [](T x, T, T) { return silu(x); }},
      {"sigmoid", [](T x, T, T) { return sigmoid(x); }},
      {"tanh", [](T x, T, T) { return tanh(x); }},
      {"exp", [](T x, T, T) { return exp(x); }},
      {"log", [](T x, T, T) { return log(square(x) + 0.01); }},
      {"softplus", [](T x, T, T) { return softplus(x); }},
      {"sqrt", [](T x, T, T) { return sqrt(square(x) + 0.01); }},
      {"multiply and add", [](T x, T y, T w) { return x * y + w * x; }},
      {"divide", [](T x, T y, T) { return x / (square(y) + 1); }},
  };
}

Tensor row_numbers(const Shape& shape, double phase) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto k = static_cast<double>(i * i % 10007);
    values[i] = 3 * std::sin(phase + 1.7 * k) + std::sin(0.3 * k * phase);
  }
  return tensor(values, shape);
}

/// The result and the gradients of x, y and w.
std::vector<std::vector<double>> results_at(CpuLevel level,
                                            const LevelCase& c,
                                            DType dtype,
                                            int64_t n) {
  set_cpu_level(level);
  const ExactScope scope;
  TensorList inputs;
  for (const Shape& shape : {Shape{7, n}, Shape{7, n}, Shape{n}}) {
    const Tensor values = row_numbers(shape, 0.7 + static_cast<double>(inputs.size()));
    inputs.push_back(values.to(dtype).detach().clone().set_requires_grad());
  }
  const Tensor out = c.function(inputs[0], inputs[1], inputs[2]);
  std::vector<std::vector<double>> results = {out.detach().to_vector<double>()};
  out.backward(row_numbers(out.shape(), 4).to(out.dtype()));
  for (const Tensor& input : inputs) {
    if (const Tensor gradient = input.grad(); gradient.defined()) {
      results.push_back(gradient.to_vector<double>());
    }
  }
  return results;
}

TEST(ExactLevels, LongRowsHaveTheSameBits) {
  const CpuLevel before = cpu_level();
  if (before < CpuLevel::kAvx512 || !is_compiled(CpuLevel::kAvx2)) {
    GTEST_SKIP() << "there is only one such level here";
  }
  for (const LevelCase& c : level_cases()) {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      for (const int64_t n : {1003, 2064}) {
        EXPECT_EQ(results_at(CpuLevel::kAvx2, c, dtype, n),
                  results_at(CpuLevel::kAvx512, c, dtype, n))
            << c.name << " " << name_of(dtype) << " " << n;
      }
    }
  }
  set_cpu_level(before);
}

// How many rows or elements a call has must not matter either: other layouts have other rows.
TEST(ExactLevels, SumsDoNotDependOnTheNumberOfRows) {
  const int64_t n = 70001;
  const Tensor few = row_numbers({3, n}, 1).to(kFloat32);
  const Tensor many = cat({few, row_numbers({40, n}, 2).to(kFloat32)}, 0);
  const std::vector<float> expected = sum(few, {-1}).to_vector<float>();
  const std::vector<float> got = slice(sum(many, {-1}), 0, 0, 3).contiguous().to_vector<float>();
  EXPECT_EQ(got, expected);
}

}  // namespace
}  // namespace tapestry
