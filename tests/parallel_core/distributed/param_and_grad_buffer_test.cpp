#include "parallel_core/distributed/param_and_grad_buffer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/kernels/elementwise.h"
#include "autograd/ops/ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

class Three final : public nn::Module {
 public:
  Three() {
    for (const auto& [name, size] : {std::pair{"a", 17}, std::pair{"b", 16}, std::pair{"c", 3}}) {
      register_parameter(name, ones({size}));
    }
  }
  std::string type_name() const override { return "Three"; }
};

int64_t offset_of(const nn::Module::NamedParameter& entry) {
  return entry.parameter->main_grad().offset();
}

TEST(ParamAndGradBuffer, LaysParametersOutFromTheLast) {
  const Three module;
  ParamAndGradBuffer buffer(module.named_parameters());
  EXPECT_EQ(buffer.grad_data().numel(), 16 + 16 + 32);
  EXPECT_EQ(buffer.grad_data().dtype(), kFloat32);
  const auto parameters = module.named_parameters();
  EXPECT_EQ(offset_of(parameters[2]), 0);
  EXPECT_EQ(offset_of(parameters[1]), 16);
  EXPECT_EQ(offset_of(parameters[0]), 32);
  for (const auto& entry : parameters) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(entry.parameter->main_grad().raw()) % 64, 0U);
  }
}

TEST(ParamAndGradBuffer, GradIsAPieceOfTheBuffer) {
  const Three module;
  ParamAndGradBuffer buffer(module.named_parameters());
  for (int pass = 0; pass < 2; ++pass) {
    Tensor total = scalar(0);
    for (const auto& entry : module.named_parameters()) {
      total = total + sum(*entry.parameter * static_cast<double>(entry.parameter->numel()));
    }
    total.backward();
  }
  for (const auto& entry : module.named_parameters()) {
    EXPECT_EQ(entry.parameter->grad().raw(), entry.parameter->main_grad().raw());
    for (const float value : entry.parameter->grad().to_vector<float>()) {
      EXPECT_EQ(value, 2.0F * static_cast<float>(entry.parameter->numel()));
    }
  }
  const double expected = 2 * std::sqrt(17.0 * 17 * 17 + 16.0 * 16 * 16 + 27);
  EXPECT_NEAR(buffer.norm(), expected, 1e-12 * expected);
  buffer.scale(0.5);
  EXPECT_NEAR(buffer.norm(), expected / 2, 1e-12 * expected);
  // The gaps between the parameters stay zero.
  const std::vector<float> all = buffer.grad_data().to_vector<float>();
  for (size_t i = 0; i < all.size(); ++i) {
    const bool gap = (i >= 3 && i < 16) || i >= 49;
    EXPECT_EQ(all[i], gap ? 0.0F : i < 3 ? 3.0F : i < 32 ? 16.0F : 17.0F) << i;
  }
  buffer.zero();
  EXPECT_EQ(buffer.norm(), 0);
}

TEST(ParamAndGradBuffer, NormFindsWhatIsNotFinite) {
  const Three module;
  const ParamAndGradBuffer buffer(module.named_parameters());
  auto* data = buffer.grad_data().data<float>();
  data[1] = 3e38F;
  data[2] = 3e38F;
  EXPECT_NEAR(buffer.norm(), 3e38 * std::sqrt(2.0), 1e32);
  data[40] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(buffer.norm()));
  data[17] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(buffer.norm()));
}

TEST(ParamAndGradBuffer, TiedWeightsHaveOnePlace) {
  const auto tied = get_model(testing::small_config());
  const auto untied =
      get_model(testing::small_config({"model_config.untie_embeddings_and_output_weights=True"}));
  const ParamAndGradBuffer one(tied->named_parameters());
  const ParamAndGradBuffer two(untied->named_parameters());
  EXPECT_EQ(two.grad_data().numel() - one.grad_data().numel(), 31 * 32);
}

TEST(ParamAndGradBuffer, ZeroHoldsForWhateverWasThere) {
  const Three module;
  ParamAndGradBuffer buffer(module.named_parameters());
  for (const auto& entry : module.named_parameters()) {
    kernels::fill_row(kFloat32, entry.parameter->numel(), 7, entry.parameter->main_grad().raw(), 1);
  }
  buffer.zero();
  const nn::Parameter& a = *module.named_parameters()[0].parameter;
  sum(a * 3.0).backward();
  EXPECT_NEAR(buffer.norm(), 3 * std::sqrt(17.0), 1e-12);
  buffer.zero();
  EXPECT_EQ(buffer.norm(), 0);
  for (const float value : buffer.grad_data().to_vector<float>()) {
    EXPECT_EQ(value, 0);
  }
}

TEST(ParamAndGradBuffer, OnDemandGradientsHaveMemoryWhileTheyHoldSomething) {
  const Three module;
  ParamAndGradBuffer apart(module.named_parameters(), {.memory = GradientMemory::kOnDemand});
  const auto gradient_bytes = [] {
    return memory_stats().current_by_kind[static_cast<size_t>(MemoryKind::kGradient)];
  };
  const int64_t before = gradient_bytes();
  const nn::Parameter& a = *module.named_parameters()[0].parameter;
  const nn::Parameter& b = *module.named_parameters()[1].parameter;
  for (int step = 0; step < 2; ++step) {
    apart.zero(step);
    EXPECT_EQ(gradient_bytes(), before);
    for (int pass = 0; pass < 2; ++pass) {
      (sum(a * 3.0) + sum(square(b))).backward();
    }
    EXPECT_EQ(gradient_bytes(), before + 128 + 64);
    EXPECT_NEAR(apart.norm(), std::sqrt(17.0 * 36 + 16 * 16), 1e-12);  // c's zeros are made for it
    apart.scale(0.5);
    EXPECT_EQ(a.grad().to_vector<float>(), std::vector<float>(17, 3));
    EXPECT_EQ(b.main_grad().to_vector<float>(), std::vector<float>(16, 2));
  }
  EXPECT_THROW(apart.grad_data(), RuntimeError);
}

TEST(ParamAndGradBuffer, InBFloat16) {
  const Three module;
  ParamAndGradBuffer buffer(module.named_parameters(), {.dtype = kBFloat16, .seed = 5});
  EXPECT_EQ(buffer.grad_data().dtype(), kBFloat16);
  EXPECT_EQ(buffer.grad_data().numel(), 3 * 32);
  const nn::Parameter& a = *module.named_parameters()[0].parameter;
  const auto two_passes = [&](int64_t step) {
    buffer.zero(step);
    sum(a * 1.0).backward();
    sum(a * 0.003).backward();
    return a.grad().to(kFloat32).to_vector<float>();
  };
  const std::vector<float> first = two_passes(1);
  EXPECT_NE(two_passes(2), first);  // other numbers round otherwise
  EXPECT_EQ(two_passes(1), first);
  EXPECT_THROW(ParamAndGradBuffer(module.named_parameters(), {.dtype = kFloat16}), TypeError);
}

}  // namespace
}  // namespace tapestry
