// A linear layer with adapters as one op, against the ops that it is made of.
#include "parallel_core/tensor_parallel/low_rank_linear.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/random.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tensor/factory.h"
#include "tests/cpu_levels.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace low_rank_linear_test {
namespace {

using testing::distance;

LowRankModule module_of(int64_t rank, double scale, const std::vector<RowBlocks>& rows) {
  LowRankModule out{.name = "m", .rank = rank, .scale = scale};
  for (const RowBlocks& block : rows) {
    out.outputs.push_back({.rows = block});
  }
  return out;
}

/// Where adapters are in a layer.
struct Placed {
  std::string name;
  int64_t rows;
  std::vector<LowRankModule> modules;
};
std::ostream& operator<<(std::ostream& out, const Placed& placed) { return out << placed.name; }

std::vector<Placed> places() {
  return {
      {"whole", 24, {module_of(4, 2, {{0, 24}})}},
      {"two_long_parts", 2080, {module_of(2, 2, {{0, 1040}}), module_of(4, 0.5, {{1040, 1040}})}},
      {"groups_of_heads",
       24,
       {module_of(2, 2, {{0, 6, 12, 2}}), module_of(2, 2, {{6, 3, 12, 2}}),
        module_of(4, 3, {{9, 3, 12, 2}})}},
      {"one_for_several_and_rows_without",
       20,
       {module_of(2, 1.5, {{0, 4}, {8, 4, 0, 1}}), module_of(2, 2, {{12, 4}})}},
  };
}

class LowRankLinear : public ::testing::TestWithParam<Placed> {
 protected:
  static constexpr int64_t kIn = 32;

  static TensorList inputs(DType dtype, DType adapters, int64_t tokens = 40) {
    const Placed& placed = GetParam();
    int64_t ranks = 0;
    int64_t elements = 0;
    for (const LowRankModule& module : placed.modules) {
      ranks += module.rank;
      for (const LowRankModule::Output& output : module.outputs) {
        elements += output.rows.total() * module.rank;
      }
    }
    return {randn({2, tokens, kIn}, dtype), randn({placed.rows, kIn}, dtype),
            randn({placed.rows}, dtype), randn({ranks, kIn}, adapters),
            randn({elements}, adapters)};
  }
  static Tensor at_once(const TensorList& in, std::function<Tensor()> recompute_x = nullptr) {
    return low_rank_linear(in[0], {in[1], {}, in[2], in[3], {}, in[4], {}}, GetParam().modules,
                           std::move(recompute_x));
  }
  static Tensor composed(const TensorList& in) {
    return add_low_rank(linear(in[0], in[1], in[2]), linear(in[0], in[3]), in[4], {},
                        GetParam().modules);
  }
  static TensorList leaves(const TensorList& in) {
    TensorList out;
    for (const Tensor& x : in) {
      out.push_back(x.detach().set_requires_grad());
    }
    return out;
  }
};

TEST_P(LowRankLinear, IsWhatItsOpsAre) {
  at_every_cpu_level([&] {
    const TensorList in = leaves(inputs(kFloat32, kFloat32));
    const Tensor y = at_once(in);
    const Tensor expected = composed(in);
    EXPECT_LT(distance(y, expected), 1e-4);
    const Tensor dy = randn(y.shape());
    const TensorList got = grad(y, in, dy);
    const TensorList wanted = grad(expected, in, dy);
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_LT(distance(got[i], wanted[i]), 1e-3) << "input " << i;
    }
  });
}

TEST_P(LowRankLinear, HasDerivativesOfBothOrders) {
  if (GetParam().rows > 100) {
    return;  // too many differences, of which the shorter layers have the same
  }
  const TensorList in = leaves(inputs(kFloat64, kFloat64, 3));
  const auto function = [](const TensorList& x) { return TensorList{at_once(x)}; };
  const GradcheckResult first = gradcheck(function, in);
  EXPECT_TRUE(first.passed) << first.message;
  const GradcheckResult second = gradgradcheck(function, in);
  EXPECT_TRUE(second.passed) << second.message;
}

TEST_P(LowRankLinear, AddsToMainGradsWhatItReturns) {
  TensorList in = leaves(inputs(kBFloat16, kFloat32));
  const Tensor dy = randn({2, 40, GetParam().rows}, kBFloat16);
  const TensorList wanted = grad(at_once(in), {in[3], in[4]}, dy);
  for (const size_t i : {3U, 4U}) {
    in[i].set_main_grad(ones(in[i].shape()));
  }
  const Tensor x = in[0].detach();
  const Tensor y = at_once(in, [x] { return x; });
  y.backward(dy);
  for (const size_t i : {3U, 4U}) {
    EXPECT_LT(distance(in[i].main_grad(), wanted[i - 3] + 1), 1e-4) << "input " << i;
  }
}

TEST_P(LowRankLinear, WithZerosForBHasTheBitsOfTheLayerAlone) {
  at_every_cpu_level([&] {
    TensorList in = inputs(kBFloat16, kFloat32);
    in[4] = zeros(in[4].shape());
    EXPECT_EQ(at_once(in).to(kFloat32).to_vector<float>(),
              linear(in[0], in[1], in[2]).to(kFloat32).to_vector<float>());
  });
}

INSTANTIATE_TEST_SUITE_P(Places,
                         LowRankLinear,
                         ::testing::ValuesIn(places()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace low_rank_linear_test
}  // namespace tapestry
