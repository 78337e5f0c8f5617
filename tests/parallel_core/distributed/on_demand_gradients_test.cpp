#include "parallel_core/distributed/on_demand_gradients.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/ops/ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "tests/parallel_core/distributed/three_parameters.h"

namespace tapestry {
namespace {

using testing::ThreeParameters;

double norm_of(const OnDemandGradients& gradients) {
  return std::sqrt(gradients.squares([](const nn::Parameter& /*parameter*/) { return true; }));
}

TEST(OnDemandGradients, GradIsTheMainGrad) {
  const ThreeParameters module;
  OnDemandGradients gradients(module.named_parameters(), {});
  module.add_sizes_to_gradients();
  module.add_sizes_to_gradients();
  for (const auto& entry : module.named_parameters()) {
    EXPECT_EQ(entry.parameter->grad().raw(), entry.parameter->main_grad().raw());
    EXPECT_EQ(entry.parameter->main_grad().dtype(), kFloat32);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(entry.parameter->main_grad().raw()) % 64, 0U);
    for (const float value : entry.parameter->grad().to_vector<float>()) {
      EXPECT_EQ(value, 2.0F * static_cast<float>(entry.parameter->numel()));
    }
  }
  const double expected = 2 * std::sqrt(17.0 * 17 * 17 + 16.0 * 16 * 16 + 27);
  EXPECT_NEAR(norm_of(gradients), expected, 1e-12 * expected);
  gradients.scale(0.5);
  EXPECT_NEAR(norm_of(gradients), expected / 2, 1e-12 * expected);
  gradients.start_step(0, 1);
  EXPECT_EQ(norm_of(gradients), 0);
}

TEST(OnDemandGradients, NormFindsWhatIsNotFinite) {
  const ThreeParameters module;
  const OnDemandGradients gradients(module.named_parameters(), {});
  auto* c = module.c().main_grad().data<float>();
  c[1] = 3e38F;
  c[2] = 3e38F;
  EXPECT_NEAR(norm_of(gradients), 3e38 * std::sqrt(2.0), 1e32);
  module.a().main_grad().data<float>()[8] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(norm_of(gradients)));
  module.b().main_grad().data<float>()[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(norm_of(gradients)));
}

TEST(OnDemandGradients, ZeroHoldsForWhateverWasThere) {
  const ThreeParameters module;
  OnDemandGradients gradients(module.named_parameters(), {});
  for (const auto& entry : module.named_parameters()) {
    kernels::fill_row(kFloat32, entry.parameter->numel(), 7, entry.parameter->main_grad().raw(), 1);
  }
  gradients.start_step(0, 1);
  sum(module.a() * 3.0).backward();
  EXPECT_NEAR(norm_of(gradients), 3 * std::sqrt(17.0), 1e-12);
  gradients.start_step(0, 1);
  EXPECT_EQ(norm_of(gradients), 0);
  for (const auto& entry : module.named_parameters()) {
    for (const float value : entry.parameter->grad().to_vector<float>()) {
      EXPECT_EQ(value, 0);
    }
  }
}

TEST(OnDemandGradients, HaveMemoryWhileTheyHoldSomething) {
  const ThreeParameters module;
  OnDemandGradients gradients(module.named_parameters(), {});
  const auto gradient_bytes = [] {
    return memory_stats().current_by_kind[static_cast<size_t>(MemoryKind::kGradient)];
  };
  const int64_t before = gradient_bytes();
  const nn::Parameter& a = module.a();
  const nn::Parameter& b = module.b();
  for (int step = 0; step < 2; ++step) {
    gradients.start_step(step, 2);
    EXPECT_EQ(gradient_bytes(), before);
    for (int pass = 0; pass < 2; ++pass) {
      (sum(a * 3.0) + sum(square(b))).backward();
    }
    EXPECT_EQ(gradient_bytes(), before + 128 + 64);
    // The zeros of c are made for it.
    EXPECT_NEAR(norm_of(gradients), std::sqrt(17.0 * 36 + 16 * 16), 1e-12);
    gradients.scale(0.5);
    EXPECT_EQ(a.grad().to_vector<float>(), std::vector<float>(17, 3));
    EXPECT_EQ(b.main_grad().to_vector<float>(), std::vector<float>(16, 2));
  }
}

TEST(OnDemandGradients, InBFloat16) {
  const ThreeParameters module;
  OnDemandGradients gradients(module.named_parameters(), {.dtype = kBFloat16, .seed = 5});
  const nn::Parameter& a = module.a();
  EXPECT_EQ(a.main_grad().dtype(), kBFloat16);
  const auto two_passes = [&](int64_t step) {
    gradients.start_step(step, 2);
    sum(a * 1.0).backward();
    sum(a * 0.003).backward();
    return a.grad().to(kFloat32).to_vector<float>();
  };
  const std::vector<float> first = two_passes(1);
  EXPECT_NE(two_passes(2), first);  // other numbers round otherwise
  EXPECT_EQ(two_passes(1), first);
  EXPECT_THROW(OnDemandGradients(module.named_parameters(), {.dtype = kFloat16}), TypeError);
}

}  // namespace
}  // namespace tapestry
