// Exact mode: gradients of parameters that all rows share have the same bits however the rows are
// divided and ordered, and at every CPU level that fuses multiply-adds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

constexpr int64_t kRows = 37;

// An op of rows [kRows, n] and of parameters; what depends on the rows only comes with them.
struct Case {
  std::string name;
  std::vector<Shape> parameters;
  std::vector<Shape> rows;  // of each input, without the first axis
  std::function<Tensor(const TensorList& inputs, const TensorList& parameters, const Tensor& ids)>
      function;
};

Tensor numbers(const Shape& shape, double phase) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(phase + 1.7 * static_cast<double>(i * i % 1009));
  }
  return tensor(values, shape);
}

Shape with_rows(int64_t rows, const Shape& rest) {
  Shape shape = {rows};
  for (const int64_t n : rest) {
    shape.push_back(n);
  }
  return shape;
}

std::vector<Case> cases() {
  return {
      {"rms_norm",
       {{53}},
       {{53}},
       [](const TensorList& x, const TensorList& p, const Tensor&) {
         return rms_norm(x[0], p[0], 1e-5);
       }},
      {"layer_norm",
       {{600}, {600}},
       {{600}},
       [](const TensorList& x, const TensorList& p, const Tensor&) {
         return layer_norm(x[0], p[0], p[1], 1e-5);
       }},
      {"add_layer_norm",
       {{53}, {53}, {53}},
       {{53}, {53}},
       [](const TensorList& x, const TensorList& p, const Tensor&) {
         const AddNorm out = add_layer_norm(x[0], x[1], p[0], p[1], {.x_bias = p[2]});
         return out.normed + out.sum;
       }},
      {"add_rms_norm, the sum alone",
       {{53}, {53}},
       {{53}, {53}},
       [](const TensorList& x, const TensorList& p, const Tensor&) {
         return add_rms_norm(x[0], x[1], p[0], {.x_bias = p[1]}).sum + rms_norm(x[0], p[0]);
       }},
      {"bias_gelu",
       {{53}},
       {{53}},
       [](const TensorList& x, const TensorList& p, const Tensor&) {
         return bias_gelu(x[0], p[0]);
       }},
      {"embedding",
       {{7, 53}},
       {{1}},
       [](const TensorList& x, const TensorList& p, const Tensor& ids) {
         return embedding(p[0], ids, x[0].dtype());
       }},
      {"add",
       {{53}},
       {{53}},
       [](const TensorList& x, const TensorList& p, const Tensor&) { return x[0] + p[0]; }},
      {"gated_rms_norm",
       {{9}},
       {{54}, {54}},
       [](const TensorList& x, const TensorList& p, const Tensor&) {
         return gated_rms_norm(x[0], x[1], p[0], {.group_size = 9});
       }},
  };
}

Tensor chosen(const Tensor& x, const std::vector<int64_t>& rows) {
  return index_select(x, 0, tensor(rows, {static_cast<int64_t>(rows.size())}));
}

/// main_grad of each parameter after backward passes over the groups of rows in turn.
TensorList exact_gradients(const Case& c,
                           DType dtype,
                           const std::vector<std::vector<int64_t>>& groups) {
  const ExactScope scope;
  TensorList parameters;
  for (size_t i = 0; i < c.parameters.size(); ++i) {
    const Tensor p = numbers(c.parameters[i], 0.3 + static_cast<double>(i)).to(kFloat32);
    parameters.push_back(p.detach().clone().set_requires_grad());
    parameters.back().set_main_grad(zeros(c.parameters[i], kFloat64));
  }
  std::vector<int64_t> ids(kRows);
  for (int64_t i = 0; i < kRows; ++i) {
    ids[i] = i * i % 7;
  }
  for (const std::vector<int64_t>& group : groups) {
    TensorList inputs;
    for (size_t k = 0; k < c.rows.size(); ++k) {
      const Tensor all = numbers(with_rows(kRows, c.rows[k]), 2.1 + static_cast<double>(k));
      inputs.push_back(chosen(all.to(dtype), group));
    }
    const Tensor y = c.function(inputs, parameters, chosen(tensor(ids, {kRows}), group));
    Shape rest = y.shape();
    rest.erase(0);
    const Tensor dy = chosen(numbers(with_rows(kRows, rest), 5).to(y.dtype()), group);
    y.backward(dy);
  }
  TensorList out;
  for (const Tensor& p : parameters) {
    out.push_back(p.main_grad());
  }
  return out;
}

std::vector<int64_t> all_rows() {
  std::vector<int64_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

void expect_same(const TensorList& got, const TensorList& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].to_vector<double>(), expected[i].to_vector<double>())
        << what << ", parameter " << i;
  }
}

TEST(ExactGradients, DoNotDependOnHowRowsAreDividedOrOrdered) {
  for (const Case& c : cases()) {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      SCOPED_TRACE(c.name + " " + std::string(name_of(dtype)));
      const TensorList expected = exact_gradients(c, dtype, {all_rows()});
      std::vector<std::vector<int64_t>> singles;
      std::vector<std::vector<int64_t>> dealt(3);
      for (const int64_t row : all_rows()) {
        singles.push_back({row});
        dealt[row * row % 3].push_back(kRows - 1 - row);
      }
      dealt[0].insert(dealt[0].end(), dealt[2].begin(), dealt[2].end());
      dealt.pop_back();
      expect_same(exact_gradients(c, dtype, singles), expected, "one by one");
      expect_same(exact_gradients(c, dtype, dealt), expected, "dealt out");
    }
  }
}

TEST(ExactGradients, HaveTheSameBitsForAnyTeamAtEveryLevel) {
  const CpuLevel level = cpu_level();
  const int threads = num_threads();
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const TensorList expected = exact_gradients(c, kFloat32, {all_rows()});
    set_num_threads(3);
    expect_same(exact_gradients(c, kFloat32, {all_rows()}), expected, "three threads");
    set_num_threads(threads);
    if (level >= CpuLevel::kAvx512 && is_compiled(CpuLevel::kAvx2)) {
      set_cpu_level(CpuLevel::kAvx2);
      expect_same(exact_gradients(c, kFloat32, {all_rows()}), expected, "avx2");
      set_cpu_level(level);
    }
  }
}

TEST(ExactGradients, AreThoseOfTheOp) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const TensorList got = exact_gradients(c, kFloat32, {all_rows()});
    TensorList parameters;
    for (size_t i = 0; i < c.parameters.size(); ++i) {
      const Tensor p = numbers(c.parameters[i], 0.3 + static_cast<double>(i)).to(kFloat32);
      parameters.push_back(p.to(kFloat64).detach().clone().set_requires_grad());
    }
    TensorList inputs;
    for (size_t k = 0; k < c.rows.size(); ++k) {
      const Tensor all = numbers(with_rows(kRows, c.rows[k]), 2.1 + static_cast<double>(k));
      inputs.push_back(all.to(kFloat32).to(kFloat64));
    }
    std::vector<int64_t> ids(kRows);
    for (int64_t i = 0; i < kRows; ++i) {
      ids[i] = i * i % 7;
    }
    const Tensor y = c.function(inputs, parameters, tensor(ids, {kRows}));
    Shape rest = y.shape();
    rest.erase(0);
    const Tensor dy = numbers(with_rows(kRows, rest), 5).to(kFloat32).to(kFloat64);
    y.backward(dy);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::vector<double> sums = got[i].to_vector<double>();
      const std::vector<double> expected = parameters[i].grad().to_vector<double>();
      for (size_t j = 0; j < sums.size(); ++j) {
        EXPECT_EQ(sums[j], std::rint(sums[j]));
        EXPECT_NEAR(std::ldexp(sums[j], kernels::kExactUnitExponent), expected[j], 2e-5)
            << "parameter " << i << "[" << j << "]";
      }
    }
  }
}

// A pipeline stage may end between the sum and its norm: the gradients cross the border rounded.
TEST(ExactGradients, OfASumWithItsNormAreThoseOfTwoOps) {
  const ExactScope scope;
  for (const DType dtype : {kFloat32, kBFloat16}) {
    SCOPED_TRACE(name_of(dtype));
    const Shape shape = {kRows, 53};
    const auto leaf = [&](const Shape& own, double phase, DType type) {
      Tensor t = numbers(own, phase).to(type).detach().clone().set_requires_grad();
      if (own.size() == 1) {
        t.set_main_grad(zeros(own, kFloat64));
      }
      return t;
    };
    const auto inputs = [&] {
      return TensorList{leaf(shape, 1, dtype), leaf(shape, 2, dtype), leaf({53}, 3, kFloat32),
                        leaf({53}, 4, kFloat32)};
    };
    const Tensor dsum = numbers(shape, 5).to(dtype);
    const Tensor dnormed = numbers(shape, 6).to(dtype);

    const TensorList fused = inputs();
    const AddNorm out = add_rms_norm(fused[0], fused[1], fused[2], {.x_bias = fused[3]});
    backward(TensorList{out.sum, out.normed}, TensorList{dsum, dnormed});

    const TensorList apart = inputs();
    const Tensor block = apart[0].to(kFloat32) + apart[3];
    const Tensor sum = (apart[1] + block).to(dtype);
    const Tensor received = sum.detach().clone().set_requires_grad();
    backward(TensorList{received.view(shape), rms_norm(received, apart[2])},
             TensorList{dsum, dnormed});
    sum.backward(received.grad());

    for (int k = 0; k < 2; ++k) {
      EXPECT_EQ(fused[k].grad().to_vector<float>(), apart[k].grad().to_vector<float>()) << k;
    }
    for (int k = 2; k < 4; ++k) {
      EXPECT_EQ(fused[k].main_grad().to_vector<double>(), apart[k].main_grad().to_vector<double>())
          << k;
    }
  }
}

}  // namespace
}  // namespace tapestry
