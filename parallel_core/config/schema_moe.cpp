// Rows of `moe_config`.
#include "parallel_core/config/schema.h"

namespace tapestry::config {
namespace moe_section {
namespace {

using E = MoEConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::moe_config, Path...>();

constexpr std::string_view kMoE = "mixtures of experts are not built yet";

std::string check_layer_freq(const Value& value) {
  const auto& list = value.as<Value::List>();
  if (list.empty()) {
    return "must not be empty";
  }
  for (const Value& item : list) {
    const int64_t number = item.as<int64_t>();
    if (list.size() == 1 ? number < 0 : number != 0 && number != 1) {
      return "must be one number f (every f-th layer) or one 0 or 1 per layer, got " +
             to_yaml(value);
    }
  }
  return {};
}

constexpr Key kKeys[] = {
    {.name = "num_experts",
     .field = f<&E::num_experts>,
     .check = above(0),
     .null = Null::kDefault,
     .accepted = "1",
     .reason = kMoE,
     .planned = true,
     .doc = "Experts of a layer; 1: a dense MLP."},
    {.name = "moe_router_topk",
     .field = f<&E::moe_router_topk>,
     .check = above(0),
     .accepted = "2",
     .reason = kMoE,
     .planned = true,
     .doc = "Experts per token."},
    {.name = "moe_layer_freq",
     .field = f<&E::moe_layer_freq>,
     .check = satisfies(check_layer_freq, "one number, or one 0 or 1 per layer"),
     .accepted = "[1]",
     .reason = kMoE,
     .planned = true,
     .doc = "Layers with experts: every f-th one (index divisible by f), or one 0 or 1 per layer."},
    {.name = "moe_ffn_hidden_size",
     .field = f<&E::moe_ffn_hidden_size>,
     .check = above(0),
     .accepted = "null",
     .reason = kMoE,
     .planned = true,
     .doc = "Width inside an expert; null: `ffn_hidden_size`."},
    {.name = "moe_shared_expert_intermediate_size",
     .field = f<&E::moe_shared_expert_intermediate_size>,
     .check = above(0),
     .accepted = "null",
     .reason = kMoE,
     .planned = true,
     .doc = "Width of an expert that sees every token."},
    {.name = "moe_router_pre_softmax",
     .field = f<&E::moe_router_pre_softmax>,
     .accepted = "False",
     .reason = kMoE,
     .planned = true,
     .doc = "Softmax before the choice of experts."},
    {.name = "moe_router_load_balancing_type",
     .field = f<&E::moe_router_load_balancing_type>,
     .check = one_of("none|aux_loss"),
     .accepted = "none",
     .reason = kMoE,
     .planned = true,
     .doc = "Load balancing."},
    {.name = "moe_aux_loss_coeff",
     .field = f<&E::moe_aux_loss_coeff>,
     .check = at_least(0),
     .accepted = "0.0",
     .reason = kMoE,
     .planned = true,
     .doc = "Weight of the load-balance loss."},
    {.name = "moe_z_loss_coeff",
     .field = f<&E::moe_z_loss_coeff>,
     .check = at_least(0),
     .accepted = "null|0.0",
     .reason = kMoE,
     .planned = true,
     .doc = "Weight of the loss on large router logits."},
    {.name = "moe_input_jitter_eps",
     .field = f<&E::moe_input_jitter_eps>,
     .check = at_least(0),
     .accepted = "null|0.0",
     .reason = kMoE,
     .planned = true,
     .doc = "Noise on the router's input."},
    {.name = "moe_expert_capacity_factor",
     .field = f<&E::moe_expert_capacity_factor>,
     .accepted = "null",
     .reason = kMoE,
     .planned = true,
     .doc = "Capacity of an expert; null or negative: no limit."},
    {.name = "moe_pad_expert_input_to_capacity",
     .field = f<&E::moe_pad_expert_input_to_capacity>,
     .accepted = "False",
     .reason = kMoE,
     .planned = true,
     .doc = "Fill experts up to their capacity."},
    {.name = "moe_token_drop_policy",
     .field = f<&E::moe_token_drop_policy>,
     .check = one_of("probs|position"),
     .accepted = "probs",
     .reason = kMoE,
     .planned = true,
     .doc = "Which tokens an expert keeps."},
    {.name = "moe_token_dispatcher_type",
     .field = f<&E::moe_token_dispatcher_type>,
     .check = one_of("alltoall"),
     .doc = "How tokens reach their experts."},
    {.name = "use_self_defined_alltoall",
     .field = f<&E::use_self_defined_alltoall>,
     .accepted = "False",
     .reason = kMoE,
     .planned = true,
     .doc = "Emulate the exchange by gathers."},
    {.name = "moe_grouped_gemm",
     .field = f<&E::moe_grouped_gemm>,
     .accepted = "False",
     .reason = kMoE,
     .planned = true,
     .doc = "One product for all experts."},
};

}  // namespace
}  // namespace moe_section

std::span<const Key> moe_keys() { return moe_section::kKeys; }

}  // namespace tapestry::config
