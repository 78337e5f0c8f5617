#include "tests/parallel_core/transformer/moe/router_testing.h"

#include <fstream>

namespace tapestry::testing {

namespace {

template <class T>
T setting(const nlohmann::json& settings, const char* key, T otherwise) {
  return settings.contains(key) ? settings[key].get<T>() : otherwise;
}

template <class T>
std::optional<T> given(const nlohmann::json& settings, const char* key) {
  return settings.contains(key) ? std::optional<T>(settings[key].get<T>()) : std::nullopt;
}

}  // namespace

const nlohmann::json& routing_cases() {
  static const nlohmann::json cases = [] {
    std::ifstream file("tests/data/moe_routing/cases.json");
    return nlohmann::json::parse(file);
  }();
  return cases;
}

TransformerConfig config_of(const nlohmann::json& settings) {
  TransformerConfig config;
  MoEConfig& moe = config.moe;
  moe.num_experts = settings["num_experts"].get<int64_t>();
  config.hidden_size = moe.num_experts;
  moe.moe_router_topk = setting<int64_t>(settings, "moe_router_topk", 2);
  moe.moe_router_score_function = setting<std::string>(settings, "score", "softmax");
  moe.moe_router_pre_softmax = setting(settings, "pre_softmax", false);
  moe.norm_topk_prob = given<bool>(settings, "norm");
  moe.moe_router_topk_scaling_factor = setting(settings, "scaling", 1.0);
  moe.topk_method = setting<std::string>(settings, "method", "greedy");
  moe.moe_router_num_groups = given<int64_t>(settings, "num_groups");
  moe.moe_router_group_topk = given<int64_t>(settings, "group_topk");
  moe.moe_router_enable_expert_bias = settings.contains("bias");
  if (settings.contains("losses")) {
    for (const nlohmann::json& loss : settings["losses"]) {
      moe.balance_losses.push_back({loss[0].get<std::string>(), loss[1].get<double>()});
    }
  }
  moe.expert_group_size = given<int64_t>(settings, "device_groups");
  moe.moe_z_loss_coeff = given<double>(settings, "z");
  moe.moe_input_jitter_eps = given<double>(settings, "jitter");
  moe.moe_expert_capacity_factor = given<double>(settings, "capacity");
  moe.moe_token_drop_policy = setting<std::string>(settings, "policy", "probs");
  return config;
}

std::unique_ptr<TopKRouter> router_of_case(const nlohmann::json& settings,
                                           const TransformerConfig& config,
                                           bool sequence_first) {
  auto router = std::make_unique<TopKRouter>(config, 1, sequence_first);
  const Tensor weight = router->parameters().front().detach();
  copy_values(eye(config.hidden_size), weight);
  if (settings.contains("previous")) {
    StepCounts counts;
    counts.balance_counts = list_of<int64_t>(settings["previous"]);
    counts.tokens_per_expert.assign(counts.balance_counts.size(), 0);
    router->finish_step(counts);
  }
  if (settings.contains("bias")) {
    set_values(buffer_of(*router, "expert_bias"), numbers_of(settings["bias"]));
  }
  return router;
}

}  // namespace tapestry::testing
