// Routers with each score function, balance loss and way to choose, against MindFormers 2.0's
// formulas in float64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/ops.h"
#include "parallel_core/transformer/moe/router.h"
#include "tests/parallel_core/mindformers2/golden.h"
#include "tests/parallel_core/small_model.h"
#include "tests/parallel_core/transformer/moe/router_testing.h"

namespace tapestry {
namespace {

AllConfig config_of_case(const nlohmann::json& one) {
  const auto function = one["function"].get<std::string>();
  const bool grouped = one["grouped"].get<bool>();
  testing::Overrides settings = {
      "model_config.hidden_size=8",
      "moe_config.num_experts=6",
      "moe_config.moe_router_topk=2",
      "moe_config.moe_ffn_hidden_size=8",
      "moe_config.moe_router_score_function=" + function,
      std::string("moe_config.norm_topk_prob=") + (grouped ? "True" : "False"),
      "moe_config.moe_router_topk_scaling_factor=1.25",
      "moe_config.moe_router_load_balancing_type=" + one["balance"].get<std::string>(),
      "moe_config.moe_aux_loss_coeff=0.5",
      "moe_config.moe_aux_loss_choice=scores"};
  if (grouped) {
    settings = testing::joined(
        settings, {"moe_config.topk_method=noaux_tc", "moe_config.moe_router_num_groups=3",
                   "moe_config.moe_router_group_topk=2"});
  }
  if (one["biased"].get<bool>()) {
    settings.emplace_back("moe_config.moe_router_enable_expert_bias=True");
  }
  return testing::small_config(settings);
}

// Sums of 8 products in float32, a score, a quotient and their slopes: a few roundings of 6e-8.
constexpr double kRouterBound = 1e-6;

TEST(RouterFormulas, GatesLossesAndGradientsAreThoseOfMindFormers) {
  for (const nlohmann::json& one : testing::golden_formulas()["routers"]) {
    const auto function = one["function"].get<std::string>();
    const auto balance = one["balance"].get<std::string>();
    SCOPED_TRACE(function + ", " + balance + (one["grouped"].get<bool>() ? ", groups" : ""));
    TopKRouter router(config_of_case(one).model_config, 1, false);
    const Tensor w = testing::named_weight("router." + function, {6, 8}, 2);
    nn::Parameter* parameter = nullptr;
    for (const auto& entry : router.named_parameters()) {
      copy_values(w, *entry.parameter);
      parameter = entry.parameter;
    }
    if (one["biased"].get<bool>()) {
      copy_values(testing::named_weight("expert_bias", {6}),
                  testing::buffer_of(router, "expert_bias"));
    }
    const Tensor x = testing::named_weight("tokens." + balance, {10, 8}, 2).set_requires_grad();
    const Routing found = router.forward(x, testing::all_tokens(2, 5));
    EXPECT_THAT(found.experts,
                ::testing::ElementsAreArray(one["experts"].get<std::vector<int32_t>>()));
    EXPECT_LE(testing::relative_error(found.gates, one["gates"].get<std::vector<double>>()),
              kRouterBound);
    const auto loss = one["loss"].get<double>();
    EXPECT_NEAR(found.aux_loss.item(), loss, kRouterBound * loss);

    std::vector<double> probes;
    for (int64_t i = 0; i < found.gates.numel(); ++i) {
      probes.push_back(testing::probe_of(i));
    }
    const Tensor probe = tensor(probes, found.gates.shape()).to(kFloat32);
    (sum(found.gates * probe) + found.aux_loss).backward();
    EXPECT_LE(testing::relative_error(parameter->grad(),
                                      one["weight_gradient"].get<std::vector<double>>()),
              kRouterBound);
    EXPECT_LE(testing::relative_error(x.grad(), one["x_gradient"].get<std::vector<double>>()),
              kRouterBound);
  }
}

}  // namespace
}  // namespace tapestry
